/* MIG devices: what a compute instance looks like to a program. */
#include "double.h"

struct Attributes {
    unsigned sm, copy, dec, enc, jpeg, ofa, gi_slices, ci_slices;
    unsigned long long memory_mib;
};
_Static_assert(sizeof(struct Attributes) == 40, "attributes");

EXPORT Return nvmlDeviceGetMaxMigDeviceCount(Handle device, unsigned *count) {
    BEGIN("nvmlDeviceGetMaxMigDeviceCount");
    GPU(gpu, device, 0);
    NEEDS(count);
    *count = gpu->mig ? gpu->compute_total : 0;
    RETURN(SUCCESS);
}

/* A device keeps its index for as long as it lives, so there are holes. */
EXPORT Return nvmlDeviceGetMigDeviceHandleByIndex(Handle device, unsigned index, Handle *mig) {
    BEGIN("nvmlDeviceGetMigDeviceHandleByIndex");
    GPU(gpu, device, 0);
    if (!gpu->mig || !mig || index >= gpu->compute_total)
        RETURN(INVALID_ARGUMENT);
    for (unsigned gi = 0; gi < INSTANCES; gi++)
        for (unsigned ci = 0; gpu->instances[gi].used && ci < COMPUTE; ci++)
            if (gpu->instances[gi].compute[ci].used && gpu->instances[gi].compute[ci].index == index) {
                *mig = handle_of(KIND_MIG, index_of(gpu), gi, ci);
                RETURN(SUCCESS);
            }
    RETURN(NOT_FOUND);
}

EXPORT Return nvmlDeviceIsMigDeviceHandle(Handle device, unsigned *is) {
    BEGIN("nvmlDeviceIsMigDeviceHandle");
    unsigned gpu, gi, ci;
    NEEDS(is);
    *is = handle_is(device, KIND_MIG, &gpu, &gi, &ci) ? 1u : 0u;
    RETURN(*is || gpu_of(device, 0) ? SUCCESS : INVALID_ARGUMENT);
}

static Return mig_part(Handle device, unsigned *value, int want_ci) {
    unsigned gpu, gi, ci;
    if (!handle_is(device, KIND_MIG, &gpu, &gi, &ci) || !gpu_of(device, 1))
        return gpu_of(device, 0) ? NOT_SUPPORTED : INVALID_ARGUMENT;
    if (!value)
        return INVALID_ARGUMENT;
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
    if (!device || !handle_is(mig, KIND_MIG, &gpu, &gi, &ci) || !gpu_of(mig, 1))
        RETURN(INVALID_ARGUMENT);
    *device = handle_of(KIND_GPU, gpu, 0, 0);
    RETURN(SUCCESS);
}

EXPORT Return nvmlDeviceGetAttributes_v2(Handle device, struct Attributes *attributes) {
    BEGIN("nvmlDeviceGetAttributes_v2");
    unsigned index, gi, ci;
    GPU(gpu, device, 1);
    NEEDS(attributes);
    if (!handle_is(device, KIND_MIG, &index, &gi, &ci))
        RETURN(NOT_SUPPORTED);
    const struct Profile *p = profile_of(gpu, &gpu->instances[gi]);
    const struct CiProfile *c = &p->ci[gpu->instances[gi].compute[ci].profile];
    *attributes = (struct Attributes){c->sm,   p->copy_engines, p->decoders, p->encoders,  p->jpeg,
                                      p->ofa, p->compute,      c->slices,   p->memory_mib};
    RETURN(SUCCESS);
}
