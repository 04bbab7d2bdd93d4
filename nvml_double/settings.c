/* What a client may set beside MIG: compute mode, and the memory of a cgroup on drivers that know such limits. */
#include "double.h"

#include <string.h>

struct MemoryLimits {
    const char *cgroup;
    unsigned long long soft, hard;
};

EXPORT Return nvmlDeviceSetComputeMode(Handle device, unsigned mode) {
    BEGIN("nvmlDeviceSetComputeMode");
    GPU(gpu, device, 0);
    NEEDS(mode == 0 || mode == 2 || mode == 3); /* 1, exclusive thread, is gone from the real library too */
    gpu->compute_mode = mode;
    RETURN(SUCCESS);
}

EXPORT Return nvmlDeviceSetMemoryLimits_v1(Handle device, const struct MemoryLimits *limits) {
    BEGIN("nvmlDeviceSetMemoryLimits_v1");
    GPU(gpu, device, 0);
    NEEDS(limits && limits->cgroup && limits->soft <= limits->hard);
    if (!gpu->limits_memory || gpu->mig)
        RETURN(NOT_SUPPORTED);
    NEEDS(limits->cgroup[0] == '/');
    RETURN(SUCCESS);
}
