/* MIG: mode, profiles, placements and GPU instances. */
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
struct GiInfo {
    Handle device;
    unsigned id, profile;
    struct Placement placement;
};
_Static_assert(sizeof(struct GiProfileInfoV2) == 152 && sizeof(struct GiInfo) == 24, "infos");

#define GI_PROFILE_V2 0x02000098u
#define PROFILE_INDICES 18u
enum Media { MEDIA_NONE, MEDIA_STANDARD, MEDIA_EXTENDED, MEDIA_ALL };

static struct Profile *profile_by_id(struct Gpu *gpu, unsigned id) {
    for (unsigned i = 0; i < gpu->profile_count; i++)
        if (gpu->profiles[i].id == id)
            return &gpu->profiles[i];
    return NULL;
}

struct Profile *profile_of(struct Gpu *gpu, const struct GpuInstance *gi) {
    return &gpu->profiles[gi->profile];
}

unsigned gi_id(const struct Gpu *gpu, const struct GpuInstance *gi) {
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
    if (!current || !pending)
        RETURN(INVALID_ARGUMENT);
    if (!gpu->profile_count)
        RETURN(NOT_SUPPORTED);
    *current = gpu->mig;
    *pending = gpu->mig_pending;
    RETURN(SUCCESS);
}

/* The activation status. Ampere resets the GPU for this: any other client forbids it, an event set of the caller too, and
   leaves the change pending ("in pending enable state: In use by another client"), and in a virtual machine the reset is
   not ours to do. From Hopper on only work on the GPU forbids it. */
static Return activate(struct Gpu *gpu, unsigned mode) {
    int busy = any_process(gpu, NO_ID);
    if (!gpu->needs_reset && busy)
        return IN_USE;
    gpu->mig_pending = mode;
    if (gpu->needs_reset && (busy || foreign_session() || listened(gpu)))
        return IN_USE;
    if (gpu->needs_reset && gpu->passthrough)
        return RESET_REQUIRED;
    gpu->mig = mode;
    return SUCCESS;
}

EXPORT Return nvmlDeviceSetMigMode(Handle device, unsigned mode, Return *status) {
    BEGIN("nvmlDeviceSetMigMode");
    GPU(gpu, device, 0);
    NEEDS(mode <= 1 && status);
    if (!gpu->profile_count)
        RETURN(NOT_SUPPORTED);
    *status = SUCCESS;
    if (gpu->mig == mode)
        gpu->mig_pending = mode;
    else if (!mode && any_instance(gpu))
        RETURN(IN_USE);
    else
        *status = activate(gpu, mode);
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
    if (info->version != GI_PROFILE_V2)
        RETURN(ARGUMENT_VERSION_MISMATCH);
    fill_gi_profile(p, info);
    RETURN(SUCCESS);
}

EXPORT Return nvmlDeviceGetGpuInstanceProfileInfoByIdV(Handle device, unsigned id, struct GiProfileInfoV2 *info) {
    BEGIN("nvmlDeviceGetGpuInstanceProfileInfoByIdV");
    GPU(gpu, device, 0);
    struct Profile *p = profile_by_id(gpu, id);
    if (!p || !info)
        RETURN(INVALID_ARGUMENT);
    if (info->version != GI_PROFILE_V2)
        RETURN(ARGUMENT_VERSION_MISMATCH);
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

uint32_t span(unsigned start, unsigned size) {
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
    NEEDS(p && count);
    if (!gpu->mig)
        RETURN(NOT_SUPPORTED);
    unsigned open = 0, standing = 0;
    for (unsigned i = 0; i < p->start_count; i++)
        open += fits(gpu, p, p->starts[i]) ? 1u : 0u;
    for (unsigned i = 0; i < INSTANCES; i++)
        standing += gpu->instances[i].used && profile_of(gpu, &gpu->instances[i]) == p ? 1u : 0u;
    /* Starts of one profile never overlap each other, but there may be more of them than the profile's limit. */
    unsigned left = p->limit > standing ? p->limit - standing : 0;
    *count = open < left ? open : left;
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
    NEEDS(instance);
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
    NEEDS(instance);
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
    NEEDS(instance);
    if (id >= INSTANCES || !gpu->instances[id].used)
        RETURN(NOT_FOUND);
    *instance = handle_of(KIND_GI, index_of(gpu), id, 0);
    RETURN(SUCCESS);
}

EXPORT Return nvmlGpuInstanceGetInfo(Handle instance, struct GiInfo *info) {
    BEGIN("nvmlGpuInstanceGetInfo");
    INSTANCE(gpu, gi, instance);
    if (!info)
        RETURN(INVALID_ARGUMENT);
    const struct Profile *p = profile_of(gpu, gi);
    *info = (struct GiInfo){handle_of(KIND_GPU, index_of(gpu), 0, 0), gi_id(gpu, gi), p->id, {gi->start, p->size}};
    RETURN(SUCCESS);
}

EXPORT Return nvmlGpuInstanceDestroy(Handle instance) {
    BEGIN("nvmlGpuInstanceDestroy");
    INSTANCE(gpu, gi, instance);
    for (unsigned i = 0; i < COMPUTE; i++)
        if (gi->compute[i].used)
            RETURN(IN_USE);
    if (any_process(gpu, gi_id(gpu, gi)))
        RETURN(IN_USE);
    memset(gi, 0, sizeof *gi);
    RETURN(SUCCESS);
}
