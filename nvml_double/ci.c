/* Compute instances. */
#include "double.h"

#include <stdio.h>
#include <string.h>

struct Placement {
    unsigned start, size;
};
struct CiProfileInfo {
    unsigned id, slices, limit, sm, copy, dec, enc, jpeg, ofa;
};
struct CiProfileInfoV2 {
    unsigned version, id, slices, limit, sm, copy, dec, enc, jpeg, ofa;
    char name[96];
};
struct CiInfo {
    Handle device, gi;
    unsigned id, profile;
    struct Placement placement;
};
_Static_assert(sizeof(struct CiProfileInfoV2) == 136 && sizeof(struct CiInfo) == 32, "infos");

#define CI_PROFILE_V2 0x02000088u
#define CI_PROFILE_INDICES 9u

static struct CiProfile *ci_profile(struct Profile *p, unsigned id) {
    for (unsigned i = 0; i < p->ci_count; i++)
        if (p->ci[i].id == id)
            return &p->ci[i];
    return NULL;
}

static Return ci_profile_info(const struct Profile *p, unsigned index, unsigned engine, struct CiProfileInfoV2 *info) {
    if (!info || index >= CI_PROFILE_INDICES || engine > 0)
        return INVALID_ARGUMENT;
    for (unsigned i = 0; i < p->ci_count; i++) {
        const struct CiProfile *c = &p->ci[i];
        if (c->index != index)
            continue;
        info->id = c->id;
        info->slices = c->slices;
        info->limit = c->limit;
        info->sm = c->sm;
        info->copy = p->copy_engines;
        info->dec = p->decoders;
        info->enc = p->encoders;
        info->jpeg = p->jpeg;
        info->ofa = p->ofa;
        if (c->slices == p->compute)
            snprintf(info->name, sizeof info->name, "MIG %s", p->name);
        else
            snprintf(info->name, sizeof info->name, "MIG %uc.%s", c->slices, p->name);
        return SUCCESS;
    }
    return NOT_SUPPORTED;
}

EXPORT Return nvmlGpuInstanceGetComputeInstanceProfileInfoV(Handle instance, unsigned index, unsigned engine,
                                                            struct CiProfileInfoV2 *info) {
    BEGIN("nvmlGpuInstanceGetComputeInstanceProfileInfoV");
    INSTANCE(gpu, gi, instance);
    if (info && info->version != CI_PROFILE_V2)
        RETURN(ARGUMENT_VERSION_MISMATCH);
    RETURN(ci_profile_info(profile_of(gpu, gi), index, engine, info));
}

EXPORT Return nvmlGpuInstanceGetComputeInstanceProfileInfo(Handle instance, unsigned index, unsigned engine,
                                                           struct CiProfileInfo *info) {
    BEGIN("nvmlGpuInstanceGetComputeInstanceProfileInfo");
    INSTANCE(gpu, gi, instance);
    struct CiProfileInfoV2 whole = {0};
    Return result = info ? ci_profile_info(profile_of(gpu, gi), index, engine, &whole) : INVALID_ARGUMENT;
    if (result == SUCCESS)
        memcpy(info, &whole.id, sizeof *info);
    RETURN(result);
}

EXPORT Return nvmlGpuInstanceGetComputeInstancePossiblePlacements(Handle instance, unsigned id,
                                                                  struct Placement *placements, unsigned *count) {
    BEGIN("nvmlGpuInstanceGetComputeInstancePossiblePlacements");
    INSTANCE(gpu, gi, instance);
    struct CiProfile *c = ci_profile(profile_of(gpu, gi), id);
    if (!c || !count)
        RETURN(INVALID_ARGUMENT);
    unsigned total = profile_of(gpu, gi)->compute / c->slices;
    if (placements) {
        if (*count < total)
            RETURN(INSUFFICIENT_SIZE);
        for (unsigned i = 0; i < total; i++)
            placements[i] = (struct Placement){i * c->slices, c->slices};
    }
    *count = total;
    RETURN(SUCCESS);
}

static int ci_fits(const struct Profile *p, const struct GpuInstance *gi, const struct CiProfile *c, unsigned start) {
    uint32_t taken = 0;
    for (unsigned i = 0; i < COMPUTE; i++)
        if (gi->compute[i].used)
            taken |= span(gi->compute[i].start, p->ci[gi->compute[i].profile].slices);
    return !(taken & span(start, c->slices));
}

/* The first compute slice where this size goes; NO_ID when there is none. */
static unsigned ci_opening(const struct Profile *p, const struct GpuInstance *gi, const struct CiProfile *c) {
    for (unsigned start = 0; start + c->slices <= p->compute; start += c->slices)
        if (ci_fits(p, gi, c, start))
            return start;
    return NO_ID;
}

EXPORT Return nvmlGpuInstanceGetComputeInstanceRemainingCapacity(Handle instance, unsigned id, unsigned *count) {
    BEGIN("nvmlGpuInstanceGetComputeInstanceRemainingCapacity");
    INSTANCE(gpu, gi, instance);
    struct CiProfile *c = ci_profile(profile_of(gpu, gi), id);
    if (!c || !count)
        RETURN(INVALID_ARGUMENT);
    *count = 0;
    for (unsigned start = 0; start + c->slices <= profile_of(gpu, gi)->compute; start += c->slices)
        *count += ci_fits(profile_of(gpu, gi), gi, c, start) ? 1u : 0u;
    RETURN(SUCCESS);
}

/* Name-based like the driver's (version 5), and another one each time: a slice made anew is another device. */
static void new_uuid(const struct Gpu *gpu, char *uuid, size_t length) {
    uint64_t hash[2] = {1469598103934665603u, 1099511628211u};
    char seed[96];
    snprintf(seed, sizeof seed, "%s/%u", gpu->uuid, ++state->made);
    for (const char *c = seed; *c; c++) {
        hash[0] = (hash[0] ^ (unsigned char)*c) * 1099511628211u;
        hash[1] = (hash[1] + hash[0]) * 6364136223846793005u + 1442695040888963407u;
    }
    snprintf(uuid, length, "MIG-%08x-%04x-5%03x-%04x-%012llx", (unsigned)hash[0], (unsigned)(hash[0] >> 32 & 0xffff),
             (unsigned)(hash[0] >> 48 & 0xfff), (unsigned)(hash[1] >> 48 & 0x3fff) | 0x8000u,
             (unsigned long long)(hash[1] & 0xffffffffffffu));
}

/* The lowest MIG device index that no living device of this GPU has: what is destroyed leaves a hole. */
static unsigned vacant_index(const struct Gpu *gpu) {
    uint64_t taken = 0;
    for (unsigned g = 0; g < INSTANCES; g++)
        for (unsigned c = 0; gpu->instances[g].used && c < COMPUTE; c++)
            if (gpu->instances[g].compute[c].used)
                taken |= 1ull << gpu->instances[g].compute[c].index;
    unsigned index = 0;
    while (taken >> index & 1u)
        index++;
    return index;
}

static Return create_at(struct Gpu *gpu, struct GpuInstance *gi, struct CiProfile *c, unsigned start, Handle *made) {
    for (unsigned i = 0; i < COMPUTE; i++) {
        struct ComputeInstance *ci = &gi->compute[i];
        if (ci->used)
            continue;
        ci->profile = (unsigned)(c - profile_of(gpu, gi)->ci);
        ci->start = start;
        ci->index = vacant_index(gpu);
        new_uuid(gpu, ci->uuid, sizeof ci->uuid);
        ci->used = 1;
        *made = handle_of(KIND_CI, index_of(gpu), gi_id(gpu, gi), i);
        return SUCCESS;
    }
    return INSUFFICIENT_RESOURCES;
}

EXPORT Return nvmlGpuInstanceCreateComputeInstance(Handle instance, unsigned id, Handle *made) {
    BEGIN("nvmlGpuInstanceCreateComputeInstance");
    INSTANCE(gpu, gi, instance);
    struct CiProfile *c = ci_profile(profile_of(gpu, gi), id);
    if (!c || !made)
        RETURN(INVALID_ARGUMENT);
    unsigned start = ci_opening(profile_of(gpu, gi), gi, c);
    RETURN(start == NO_ID ? INSUFFICIENT_RESOURCES : create_at(gpu, gi, c, start, made));
}

EXPORT Return nvmlGpuInstanceCreateComputeInstanceWithPlacement(Handle instance, unsigned id,
                                                                const struct Placement *placement, Handle *made) {
    BEGIN("nvmlGpuInstanceCreateComputeInstanceWithPlacement");
    INSTANCE(gpu, gi, instance);
    struct CiProfile *c = ci_profile(profile_of(gpu, gi), id);
    if (!c || !placement || !made || placement->size != c->slices || placement->start % c->slices ||
        placement->start >= profile_of(gpu, gi)->compute / c->slices * c->slices)
        RETURN(INVALID_ARGUMENT);
    int free = ci_fits(profile_of(gpu, gi), gi, c, placement->start);
    RETURN(free ? create_at(gpu, gi, c, placement->start, made) : INSUFFICIENT_RESOURCES);
}

EXPORT Return nvmlGpuInstanceGetComputeInstances(Handle instance, unsigned id, Handle *found, unsigned *count) {
    BEGIN("nvmlGpuInstanceGetComputeInstances");
    INSTANCE(gpu, gi, instance);
    struct CiProfile *c = ci_profile(profile_of(gpu, gi), id);
    if (!c || !count)
        RETURN(INVALID_ARGUMENT);
    unsigned number = 0;
    for (unsigned i = 0; i < COMPUTE; i++)
        if (gi->compute[i].used && &profile_of(gpu, gi)->ci[gi->compute[i].profile] == c) {
            if (found)
                found[number] = handle_of(KIND_CI, index_of(gpu), gi_id(gpu, gi), i);
            number++;
        }
    *count = number;
    RETURN(SUCCESS);
}

EXPORT Return nvmlGpuInstanceGetComputeInstanceById(Handle instance, unsigned id, Handle *found) {
    BEGIN("nvmlGpuInstanceGetComputeInstanceById");
    INSTANCE(gpu, gi, instance);
    NEEDS(found);
    if (id >= COMPUTE || !gi->compute[id].used)
        RETURN(NOT_FOUND);
    *found = handle_of(KIND_CI, index_of(gpu), gi_id(gpu, gi), id);
    RETURN(SUCCESS);
}

EXPORT Return nvmlComputeInstanceGetInfo_v2(Handle compute, struct CiInfo *info) {
    BEGIN("nvmlComputeInstanceGetInfo_v2");
    COMPUTE_INSTANCE(gpu, gi, ci, compute);
    if (!info)
        RETURN(INVALID_ARGUMENT);
    unsigned id = (unsigned)(ci - gi->compute), index = index_of(gpu);
    const struct CiProfile *c = &profile_of(gpu, gi)->ci[ci->profile];
    *info = (struct CiInfo){handle_of(KIND_MIG, index, gi_id(gpu, gi), id), handle_of(KIND_GI, index, gi_id(gpu, gi), 0),
                            id, c->id, {ci->start, c->slices}};
    RETURN(SUCCESS);
}

EXPORT Return nvmlComputeInstanceDestroy(Handle compute) {
    BEGIN("nvmlComputeInstanceDestroy");
    COMPUTE_INSTANCE(gpu, gi, ci, compute);
    for (unsigned i = 0; i < PROCESSES; i++) {
        const struct Process *process = &gpu->processes[i];
        if (process->used && process->gi == gi_id(gpu, gi) && process->ci == (unsigned)(ci - gi->compute))
            RETURN(IN_USE);
    }
    memset(ci, 0, sizeof *ci);
    RETURN(SUCCESS);
}
