/* MIG: mode, profiles, placements, GPU instances, compute instances and the MIG devices they make. */
#include "double.h"

#include <stdio.h>
#include <string.h>

struct Placement {
    unsigned start, size;
};
struct GiProfileInfo {
    unsigned id, p2p, slices, limit, sm, copy, dec, enc, jpeg, ofa;
    unsigned long long memory_mib;
};
struct GiProfileInfoV2 {
    unsigned version, id, p2p, slices, limit, sm, copy, dec, enc, jpeg, ofa;
    unsigned long long memory_mib;
    char name[96];
};
struct CiProfileInfo {
    unsigned id, slices, limit, sm, copy, dec, enc, jpeg, ofa;
};
struct CiProfileInfoV2 {
    unsigned version, id, slices, limit, sm, copy, dec, enc, jpeg, ofa;
    char name[96];
};
struct GiInfo {
    Handle device;
    unsigned id, profile;
    struct Placement placement;
};
struct CiInfo {
    Handle device, gi;
    unsigned id, profile;
    struct Placement placement;
};
struct Attributes {
    unsigned sm, copy, dec, enc, jpeg, ofa, gi_slices, ci_slices;
    unsigned long long memory_mib;
};
_Static_assert(sizeof(struct GiProfileInfoV2) == 152 && sizeof(struct CiProfileInfoV2) == 136, "profile infos");
_Static_assert(sizeof(struct GiInfo) == 24 && sizeof(struct CiInfo) == 32 && sizeof(struct Attributes) == 40, "infos");

#define GI_PROFILE_V2 0x02000098u
#define CI_PROFILE_V2 0x02000088u
#define PROFILE_INDICES 18u
#define CI_PROFILE_INDICES 9u
enum Media { MEDIA_NONE, MEDIA_STANDARD, MEDIA_EXTENDED, MEDIA_ALL };

static struct Profile *profile_by_id(struct Gpu *gpu, unsigned id) {
    for (unsigned i = 0; i < gpu->profile_count; i++)
        if (gpu->profiles[i].id == id)
            return &gpu->profiles[i];
    return NULL;
}

static struct Profile *profile_of(struct Gpu *gpu, const struct GpuInstance *gi) {
    return &gpu->profiles[gi->profile];
}

static unsigned gi_id(const struct Gpu *gpu, const struct GpuInstance *gi) {
    return (unsigned)(gi - gpu->instances);
}

static int any_process(const struct Gpu *gpu, unsigned gi) {
    for (unsigned i = 0; i < PROCESSES; i++)
        if (gpu->processes[i].used && (gi == NO_ID || gpu->processes[i].gi == gi))
            return 1;
    return 0;
}

static int any_instance(const struct Gpu *gpu) {
    for (unsigned i = 0; i < INSTANCES; i++)
        if (gpu->instances[i].used)
            return 1;
    return 0;
}

EXPORT Return nvmlDeviceGetMigMode(Handle device, unsigned *current, unsigned *pending) {
    BEGIN("nvmlDeviceGetMigMode");
    GPU(gpu, device, 0);
    if (!gpu->profile_count)
        RETURN(NOT_SUPPORTED);
    *current = gpu->mig;
    *pending = gpu->mig_pending;
    RETURN(SUCCESS);
}

EXPORT Return nvmlDeviceSetMigMode(Handle device, unsigned mode, Return *status) {
    BEGIN("nvmlDeviceSetMigMode");
    GPU(gpu, device, 0);
    if (mode > 1)
        RETURN(INVALID_ARGUMENT);
    if (!gpu->profile_count)
        RETURN(NOT_SUPPORTED);
    if (gpu->mig != mode && !mode && any_instance(gpu))
        RETURN(IN_USE);
    *status = SUCCESS;
    if (gpu->mig == mode) {
        gpu->mig_pending = mode;
        RETURN(SUCCESS);
    }
    if (any_process(gpu, NO_ID)) {
        *status = IN_USE;
        RETURN(SUCCESS);
    }
    gpu->mig_pending = mode;
    /* Ampere resets the GPU for this, and any other NVML session is a client that forbids a reset. */
    if (gpu->needs_reset && foreign_session()) {
        *status = RESET_REQUIRED;
        RETURN(SUCCESS);
    }
    gpu->mig = mode;
    RETURN(SUCCESS);
}

static void fill_gi_profile(const struct Profile *p, struct GiProfileInfoV2 *info) {
    info->id = p->id;
    info->p2p = 0;
    info->slices = p->compute;
    info->limit = p->limit;
    info->sm = p->sm;
    info->copy = p->copy_engines;
    info->dec = p->decoders;
    info->enc = p->encoders;
    info->jpeg = p->jpeg;
    info->ofa = p->ofa;
    info->memory_mib = p->memory_mib;
    snprintf(info->name, sizeof info->name, "MIG %s", p->name);
}

static struct Profile *profile_by_index(struct Gpu *gpu, unsigned index) {
    for (unsigned i = 0; i < gpu->profile_count; i++)
        if (gpu->profiles[i].index == index)
            return &gpu->profiles[i];
    return NULL;
}

EXPORT Return nvmlDeviceGetGpuInstanceProfileInfoV(Handle device, unsigned index, struct GiProfileInfoV2 *info) {
    BEGIN("nvmlDeviceGetGpuInstanceProfileInfoV");
    GPU(gpu, device, 0);
    if (index >= PROFILE_INDICES || !info)
        RETURN(INVALID_ARGUMENT);
    struct Profile *p = profile_by_index(gpu, index);
    if (!p)
        RETURN(NOT_SUPPORTED);
    /* pynvml leaves the version at 0 and means 2. */
    if (info->version != 0 && info->version != GI_PROFILE_V2)
        RETURN(ARGUMENT_VERSION_MISMATCH);
    fill_gi_profile(p, info);
    RETURN(SUCCESS);
}

EXPORT Return nvmlDeviceGetGpuInstanceProfileInfoByIdV(Handle device, unsigned id, struct GiProfileInfoV2 *info) {
    BEGIN("nvmlDeviceGetGpuInstanceProfileInfoByIdV");
    GPU(gpu, device, 0);
    struct Profile *p = profile_by_id(gpu, id);
    if (!p)
        RETURN(INVALID_ARGUMENT);
    fill_gi_profile(p, info);
    RETURN(SUCCESS);
}

EXPORT Return nvmlDeviceGetGpuInstanceProfileInfo(Handle device, unsigned index, struct GiProfileInfo *info) {
    BEGIN("nvmlDeviceGetGpuInstanceProfileInfo");
    GPU(gpu, device, 0);
    if (index >= PROFILE_INDICES || !info)
        RETURN(INVALID_ARGUMENT);
    struct Profile *p = profile_by_index(gpu, index);
    if (!p)
        RETURN(NOT_SUPPORTED);
    struct GiProfileInfoV2 whole = {0};
    fill_gi_profile(p, &whole);
    *info = (struct GiProfileInfo){whole.id,  whole.p2p, whole.slices, whole.limit, whole.sm,        whole.copy,
                                   whole.dec, whole.enc, whole.jpeg,   whole.ofa,   whole.memory_mib};
    RETURN(SUCCESS);
}

EXPORT Return nvmlDeviceGetGpuInstancePossiblePlacements_v2(Handle device, unsigned id, struct Placement *placements,
                                                            unsigned *count) {
    BEGIN("nvmlDeviceGetGpuInstancePossiblePlacements_v2");
    GPU(gpu, device, 0);
    struct Profile *p = profile_by_id(gpu, id);
    if (!p || !count)
        RETURN(INVALID_ARGUMENT);
    unsigned room = placements ? *count : 0;
    *count = p->start_count;
    if (!placements)
        RETURN(SUCCESS);
    if (room < p->start_count)
        RETURN(INSUFFICIENT_SIZE);
    for (unsigned i = 0; i < p->start_count; i++)
        placements[i] = (struct Placement){p->starts[i], p->size};
    RETURN(SUCCESS);
}

static uint32_t span(unsigned start, unsigned size) {
    return ((1u << size) - 1u) << start;
}

/* Free of overlaps, below the profile's own limit, and at peace with the media engines of the others. */
static int fits(struct Gpu *gpu, const struct Profile *p, unsigned start) {
    unsigned same = 0;
    for (unsigned i = 0; i < INSTANCES; i++) {
        const struct GpuInstance *gi = &gpu->instances[i];
        if (!gi->used)
            continue;
        const struct Profile *other = profile_of(gpu, gi);
        same += other == p;
        if (span(gi->start, other->size) & span(start, p->size))
            return 0;
        if ((p->media == MEDIA_ALL && other->media != MEDIA_NONE) || (other->media == MEDIA_ALL && p->media != MEDIA_NONE))
            return 0;
        if (p->media == MEDIA_EXTENDED && other->media == MEDIA_EXTENDED)
            return 0;
    }
    return same < p->limit;
}

EXPORT Return nvmlDeviceGetGpuInstanceRemainingCapacity(Handle device, unsigned id, unsigned *count) {
    BEGIN("nvmlDeviceGetGpuInstanceRemainingCapacity");
    GPU(gpu, device, 0);
    struct Profile *p = profile_by_id(gpu, id);
    if (!p)
        RETURN(INVALID_ARGUMENT);
    if (!gpu->mig)
        RETURN(NOT_SUPPORTED);
    *count = 0;
    for (unsigned i = 0; i < p->start_count; i++)
        *count += fits(gpu, p, p->starts[i]) ? 1u : 0u;
    RETURN(SUCCESS);
}

/* Ids are unique per GPU while alive and say the span class: full 0, halves 1-2, quarters 3-6, eighths 7-14. */
static struct GpuInstance *vacant(struct Gpu *gpu, const struct Profile *p) {
    unsigned first = 7, last = 14;
    if (p->size == gpu->axis)
        first = 0, last = 0;
    else if (p->size * 2 == gpu->axis)
        first = 1, last = 2;
    else if (p->size * 4 == gpu->axis)
        first = 3, last = 6;
    for (unsigned i = first; i <= last; i++)
        if (!gpu->instances[i].used)
            return &gpu->instances[i];
    return NULL;
}

static Return create_gi(struct Gpu *gpu, const struct Profile *p, unsigned start, Handle *instance) {
    if (!gpu->mig)
        return NOT_SUPPORTED;
    if (!fits(gpu, p, start))
        return INSUFFICIENT_RESOURCES;
    struct GpuInstance *gi = vacant(gpu, p);
    if (!gi)
        return INSUFFICIENT_RESOURCES;
    memset(gi, 0, sizeof *gi);
    gi->profile = (unsigned)(p - gpu->profiles);
    gi->start = start;
    gi->used = 1;
    *instance = handle_of(KIND_GI, index_of(gpu), gi_id(gpu, gi), 0);
    return SUCCESS;
}

EXPORT Return nvmlDeviceCreateGpuInstanceWithPlacement(Handle device, unsigned id, const struct Placement *placement,
                                                       Handle *instance) {
    BEGIN("nvmlDeviceCreateGpuInstanceWithPlacement");
    GPU(gpu, device, 0);
    struct Profile *p = profile_by_id(gpu, id);
    if (!p || !placement || placement->size != p->size)
        RETURN(INVALID_ARGUMENT);
    for (unsigned i = 0; i < p->start_count; i++)
        if (p->starts[i] == placement->start)
            RETURN(create_gi(gpu, p, placement->start, instance));
    RETURN(INVALID_ARGUMENT);
}

EXPORT Return nvmlDeviceCreateGpuInstance(Handle device, unsigned id, Handle *instance) {
    BEGIN("nvmlDeviceCreateGpuInstance");
    GPU(gpu, device, 0);
    struct Profile *p = profile_by_id(gpu, id);
    if (!p)
        RETURN(INVALID_ARGUMENT);
    if (!gpu->mig)
        RETURN(NOT_SUPPORTED);
    /* The driver's own choice starts high, as on Ampere: nobody may rely on it. */
    for (unsigned i = p->start_count; i-- > 0;)
        if (fits(gpu, p, p->starts[i]))
            RETURN(create_gi(gpu, p, p->starts[i], instance));
    RETURN(INSUFFICIENT_RESOURCES);
}

EXPORT Return nvmlDeviceGetGpuInstances(Handle device, unsigned id, Handle *instances, unsigned *count) {
    BEGIN("nvmlDeviceGetGpuInstances");
    GPU(gpu, device, 0);
    struct Profile *p = profile_by_id(gpu, id);
    if (!p || !count)
        RETURN(INVALID_ARGUMENT);
    unsigned found = 0;
    for (unsigned i = 0; i < INSTANCES; i++)
        if (gpu->instances[i].used && profile_of(gpu, &gpu->instances[i]) == p) {
            if (instances)
                instances[found] = handle_of(KIND_GI, index_of(gpu), i, 0);
            found++;
        }
    *count = found;
    RETURN(SUCCESS);
}

EXPORT Return nvmlDeviceGetGpuInstanceById(Handle device, unsigned id, Handle *instance) {
    BEGIN("nvmlDeviceGetGpuInstanceById");
    GPU(gpu, device, 0);
    if (id >= INSTANCES || !gpu->instances[id].used)
        RETURN(NOT_FOUND);
    *instance = handle_of(KIND_GI, index_of(gpu), id, 0);
    RETURN(SUCCESS);
}

EXPORT Return nvmlGpuInstanceGetInfo(Handle instance, struct GiInfo *info) {
    BEGIN("nvmlGpuInstanceGetInfo");
    struct Gpu *gpu;
    struct GpuInstance *gi = gi_of(instance, &gpu);
    if (!gi || !info)
        RETURN(INVALID_ARGUMENT);
    if (gpu->lost)
        RETURN(GPU_IS_LOST);
    const struct Profile *p = profile_of(gpu, gi);
    *info = (struct GiInfo){handle_of(KIND_GPU, index_of(gpu), 0, 0), gi_id(gpu, gi), p->id, {gi->start, p->size}};
    RETURN(SUCCESS);
}

EXPORT Return nvmlGpuInstanceDestroy(Handle instance) {
    BEGIN("nvmlGpuInstanceDestroy");
    struct Gpu *gpu;
    struct GpuInstance *gi = gi_of(instance, &gpu);
    if (!gi)
        RETURN(INVALID_ARGUMENT);
    if (gpu->lost)
        RETURN(GPU_IS_LOST);
    for (unsigned i = 0; i < COMPUTE; i++)
        if (gi->compute[i].used)
            RETURN(IN_USE);
    if (any_process(gpu, gi_id(gpu, gi)))
        RETURN(IN_USE);
    memset(gi, 0, sizeof *gi);
    RETURN(SUCCESS);
}

static struct CiProfile *ci_profile(struct Profile *p, unsigned id) {
    for (unsigned i = 0; i < p->ci_count; i++)
        if (p->ci[i].id == id)
            return &p->ci[i];
    return NULL;
}

static Return ci_profile_info(Handle instance, unsigned index, unsigned engine, struct CiProfileInfoV2 *info) {
    struct Gpu *gpu;
    struct GpuInstance *gi = gi_of(instance, &gpu);
    if (!gi || index >= CI_PROFILE_INDICES || engine > 0)
        return INVALID_ARGUMENT;
    const struct Profile *p = profile_of(gpu, gi);
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
    if (!info)
        RETURN(INVALID_ARGUMENT);
    if (info->version != 0 && info->version != CI_PROFILE_V2)
        RETURN(ARGUMENT_VERSION_MISMATCH);
    RETURN(ci_profile_info(instance, index, engine, info));
}

EXPORT Return nvmlGpuInstanceGetComputeInstanceProfileInfo(Handle instance, unsigned index, unsigned engine,
                                                           struct CiProfileInfo *info) {
    BEGIN("nvmlGpuInstanceGetComputeInstanceProfileInfo");
    struct CiProfileInfoV2 whole = {0};
    Return result = ci_profile_info(instance, index, engine, &whole);
    if (result == SUCCESS)
        memcpy(info, &whole.id, sizeof *info);
    RETURN(result);
}

EXPORT Return nvmlGpuInstanceGetComputeInstancePossiblePlacements(Handle instance, unsigned id,
                                                                  struct Placement *placements, unsigned *count) {
    BEGIN("nvmlGpuInstanceGetComputeInstancePossiblePlacements");
    struct Gpu *gpu;
    struct GpuInstance *gi = gi_of(instance, &gpu);
    struct CiProfile *c = gi ? ci_profile(profile_of(gpu, gi), id) : NULL;
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

/* The first compute-slice position where this size goes; NO_ID when there is none. */
static unsigned ci_opening(const struct Profile *p, const struct GpuInstance *gi, const struct CiProfile *c) {
    uint32_t taken = 0;
    for (unsigned i = 0; i < COMPUTE; i++)
        if (gi->compute[i].used)
            taken |= span(gi->compute[i].start, p->ci[gi->compute[i].profile].slices);
    for (unsigned start = 0; start + c->slices <= p->compute; start += c->slices)
        if (!(taken & span(start, c->slices)))
            return start;
    return NO_ID;
}

EXPORT Return nvmlGpuInstanceGetComputeInstanceRemainingCapacity(Handle instance, unsigned id, unsigned *count) {
    BEGIN("nvmlGpuInstanceGetComputeInstanceRemainingCapacity");
    struct Gpu *gpu;
    struct GpuInstance *gi = gi_of(instance, &gpu);
    struct CiProfile *c = gi ? ci_profile(profile_of(gpu, gi), id) : NULL;
    if (!c)
        RETURN(INVALID_ARGUMENT);
    struct GpuInstance trial = *gi;
    const struct Profile *p = profile_of(gpu, gi);
    *count = 0;
    for (unsigned i = 0, start; i < COMPUTE && (start = ci_opening(p, &trial, c)) != NO_ID; i++) {
        if (trial.compute[i].used)
            continue;
        trial.compute[i] = (struct ComputeInstance){.used = 1, .profile = (unsigned)(c - p->ci), .start = start};
        (*count)++;
    }
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

static Return create_ci(Handle instance, unsigned id, const struct Placement *placement, Handle *made) {
    struct Gpu *gpu;
    struct GpuInstance *gi = gi_of(instance, &gpu);
    struct CiProfile *c = gi ? ci_profile(profile_of(gpu, gi), id) : NULL;
    if (!c)
        return INVALID_ARGUMENT;
    if (gpu->lost)
        return GPU_IS_LOST;
    unsigned start = ci_opening(profile_of(gpu, gi), gi, c);
    if (start == NO_ID || (placement && placement->start != start))
        return INSUFFICIENT_RESOURCES;
    for (unsigned i = 0; i < COMPUTE; i++)
        if (!gi->compute[i].used) {
            gi->compute[i].profile = (unsigned)(c - profile_of(gpu, gi)->ci);
            gi->compute[i].start = start;
            new_uuid(gpu, gi->compute[i].uuid, sizeof gi->compute[i].uuid);
            gi->compute[i].used = 1;
            *made = handle_of(KIND_CI, index_of(gpu), gi_id(gpu, gi), i);
            return SUCCESS;
        }
    return INSUFFICIENT_RESOURCES;
}

EXPORT Return nvmlGpuInstanceCreateComputeInstance(Handle instance, unsigned id, Handle *made) {
    BEGIN("nvmlGpuInstanceCreateComputeInstance");
    RETURN(create_ci(instance, id, NULL, made));
}

EXPORT Return nvmlGpuInstanceCreateComputeInstanceWithPlacement(Handle instance, unsigned id,
                                                                const struct Placement *placement, Handle *made) {
    BEGIN("nvmlGpuInstanceCreateComputeInstanceWithPlacement");
    RETURN(create_ci(instance, id, placement, made));
}

EXPORT Return nvmlGpuInstanceGetComputeInstances(Handle instance, unsigned id, Handle *found, unsigned *count) {
    BEGIN("nvmlGpuInstanceGetComputeInstances");
    struct Gpu *gpu;
    struct GpuInstance *gi = gi_of(instance, &gpu);
    struct CiProfile *c = gi ? ci_profile(profile_of(gpu, gi), id) : NULL;
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
    struct Gpu *gpu;
    struct GpuInstance *gi = gi_of(instance, &gpu);
    if (!gi)
        RETURN(INVALID_ARGUMENT);
    if (id >= COMPUTE || !gi->compute[id].used)
        RETURN(NOT_FOUND);
    *found = handle_of(KIND_CI, index_of(gpu), gi_id(gpu, gi), id);
    RETURN(SUCCESS);
}

EXPORT Return nvmlComputeInstanceGetInfo_v2(Handle compute, struct CiInfo *info) {
    BEGIN("nvmlComputeInstanceGetInfo_v2");
    struct Gpu *gpu;
    struct GpuInstance *gi;
    struct ComputeInstance *ci = ci_of(compute, &gpu, &gi);
    if (!ci || !info)
        RETURN(INVALID_ARGUMENT);
    unsigned id = (unsigned)(ci - gi->compute), index = index_of(gpu);
    const struct CiProfile *c = &profile_of(gpu, gi)->ci[ci->profile];
    *info = (struct CiInfo){handle_of(KIND_MIG, index, gi_id(gpu, gi), id), handle_of(KIND_GI, index, gi_id(gpu, gi), 0),
                            id, c->id, {ci->start, c->slices}};
    RETURN(SUCCESS);
}

EXPORT Return nvmlComputeInstanceDestroy(Handle compute) {
    BEGIN("nvmlComputeInstanceDestroy");
    struct Gpu *gpu;
    struct GpuInstance *gi;
    struct ComputeInstance *ci = ci_of(compute, &gpu, &gi);
    if (!ci)
        RETURN(INVALID_ARGUMENT);
    if (gpu->lost)
        RETURN(GPU_IS_LOST);
    for (unsigned i = 0; i < PROCESSES; i++) {
        const struct Process *process = &gpu->processes[i];
        if (process->used && process->gi == gi_id(gpu, gi) && process->ci == (unsigned)(ci - gi->compute))
            RETURN(IN_USE);
    }
    memset(ci, 0, sizeof *ci);
    RETURN(SUCCESS);
}

EXPORT Return nvmlDeviceGetMaxMigDeviceCount(Handle device, unsigned *count) {
    BEGIN("nvmlDeviceGetMaxMigDeviceCount");
    GPU(gpu, device, 0);
    *count = gpu->mig ? gpu->compute_total : 0;
    RETURN(SUCCESS);
}

/* MIG devices of one GPU by index: the n-th compute instance in the order of instance ids. */
EXPORT Return nvmlDeviceGetMigDeviceHandleByIndex(Handle device, unsigned index, Handle *mig) {
    BEGIN("nvmlDeviceGetMigDeviceHandleByIndex");
    GPU(gpu, device, 0);
    if (!gpu->mig)
        RETURN(INVALID_ARGUMENT);
    for (unsigned gi = 0, seen = 0; gi < INSTANCES; gi++)
        for (unsigned ci = 0; gpu->instances[gi].used && ci < COMPUTE; ci++)
            if (gpu->instances[gi].compute[ci].used && seen++ == index) {
                *mig = handle_of(KIND_MIG, index_of(gpu), gi, ci);
                RETURN(SUCCESS);
            }
    RETURN(NOT_FOUND);
}

EXPORT Return nvmlDeviceIsMigDeviceHandle(Handle device, unsigned *is) {
    BEGIN("nvmlDeviceIsMigDeviceHandle");
    unsigned gpu, gi, ci;
    *is = handle_is(device, KIND_MIG, &gpu, &gi, &ci) ? 1u : 0u;
    RETURN(*is || gpu_of(device, 0) ? SUCCESS : INVALID_ARGUMENT);
}

static Return mig_part(Handle device, unsigned *value, int want_ci) {
    unsigned gpu, gi, ci;
    if (!handle_is(device, KIND_MIG, &gpu, &gi, &ci) || !gpu_of(device, 1))
        return gpu_of(device, 0) ? NOT_SUPPORTED : INVALID_ARGUMENT;
    *value = want_ci ? ci : gi;
    return SUCCESS;
}

EXPORT Return nvmlDeviceGetGpuInstanceId(Handle device, unsigned *id) {
    BEGIN("nvmlDeviceGetGpuInstanceId");
    RETURN(mig_part(device, id, 0));
}

EXPORT Return nvmlDeviceGetComputeInstanceId(Handle device, unsigned *id) {
    BEGIN("nvmlDeviceGetComputeInstanceId");
    RETURN(mig_part(device, id, 1));
}

EXPORT Return nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Handle mig, Handle *device) {
    BEGIN("nvmlDeviceGetDeviceHandleFromMigDeviceHandle");
    unsigned gpu, gi, ci;
    if (!handle_is(mig, KIND_MIG, &gpu, &gi, &ci) || !gpu_of(mig, 1))
        RETURN(INVALID_ARGUMENT);
    *device = handle_of(KIND_GPU, gpu, 0, 0);
    RETURN(SUCCESS);
}

EXPORT Return nvmlDeviceGetAttributes_v2(Handle device, struct Attributes *attributes) {
    BEGIN("nvmlDeviceGetAttributes_v2");
    unsigned index, gi, ci;
    GPU(gpu, device, 1);
    if (!handle_is(device, KIND_MIG, &index, &gi, &ci))
        RETURN(NOT_SUPPORTED);
    const struct Profile *p = profile_of(gpu, &gpu->instances[gi]);
    const struct CiProfile *c = &p->ci[gpu->instances[gi].compute[ci].profile];
    *attributes = (struct Attributes){c->sm,   p->copy_engines, p->decoders, p->encoders,  p->jpeg,
                                      p->ofa, p->compute,      c->slices,   p->memory_mib};
    RETURN(SUCCESS);
}
