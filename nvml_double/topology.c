/* How GPUs reach each other and the host, and the calls that are answered by "not supported". */
#include "double.h"

#include <string.h>

/* Neighbours share a PCIe switch, four GPUs a socket; every pair is one NVSwitch hop away. */
EXPORT Return nvmlDeviceGetTopologyCommonAncestor(Handle first, Handle second, unsigned *level) {
    BEGIN("nvmlDeviceGetTopologyCommonAncestor");
    GPU(a, first, 0);
    GPU(b, second, 0);
    unsigned x = index_of(a), y = index_of(b);
    if (!level)
        RETURN(INVALID_ARGUMENT);
    /* Internal, one switch, one node, across sockets. */
    *level = x == y ? 0 : x / 2 == y / 2 ? 10 : x / 4 == y / 4 ? 40 : 50;
    RETURN(SUCCESS);
}

EXPORT Return nvmlDeviceGetP2PStatus(Handle first, Handle second, unsigned cap, unsigned *status) {
    BEGIN("nvmlDeviceGetP2PStatus");
    GPU(a, first, 0);
    GPU(b, second, 0);
    NEEDS(status && cap <= 4);
    int linked = cap != 2 || (a->nvlinks && b->nvlinks);
    *status = a->mig || b->mig || !linked ? 5 : 0;
    RETURN(SUCCESS);
}

EXPORT Return nvmlDeviceGetNvLinkState(Handle device, unsigned link, unsigned *active) {
    BEGIN("nvmlDeviceGetNvLinkState");
    GPU(gpu, device, 0);
    NEEDS(active && link < gpu->nvlinks);
    *active = gpu->mig ? 0 : 1;
    RETURN(SUCCESS);
}

EXPORT Return nvmlDeviceGetNvLinkRemoteDeviceType(Handle device, unsigned link, unsigned *type) {
    BEGIN("nvmlDeviceGetNvLinkRemoteDeviceType");
    GPU(gpu, device, 0);
    NEEDS(type && link < gpu->nvlinks && !gpu->mig);
    *type = 2;
    RETURN(SUCCESS);
}

EXPORT Return nvmlDeviceGetNvLinkVersion(Handle device, unsigned link, unsigned *version) {
    BEGIN("nvmlDeviceGetNvLinkVersion");
    GPU(gpu, device, 0);
    NEEDS(version && link < gpu->nvlinks && !gpu->mig);
    *version = gpu->cc_major >= 10 ? 5 : gpu->cc_major == 9 ? 4 : 3;
    RETURN(SUCCESS);
}

EXPORT Return nvmlDeviceGetMemoryAffinity(Handle device, unsigned words, unsigned long *set, unsigned scope) {
    BEGIN("nvmlDeviceGetMemoryAffinity");
    GPU(gpu, device, 0);
    if (!set || !words || scope > 1)
        RETURN(INVALID_ARGUMENT);
    memset(set, 0, words * sizeof *set);
    set[0] = 1ul << index_of(gpu) / 4 % 2;
    RETURN(SUCCESS);
}

EXPORT Return nvmlDeviceGetCpuAffinity(Handle device, unsigned words, unsigned long *set) {
    BEGIN("nvmlDeviceGetCpuAffinity");
    GPU(gpu, device, 0);
    if (!set || !words)
        RETURN(INVALID_ARGUMENT);
    memset(set, 0, words * sizeof *set);
    set[0] = index_of(gpu) / 4 % 2 ? 0xffff0000ul : 0x0000fffful;
    RETURN(SUCCESS);
}

/* A zero cluster means that the NVLink domain is this machine alone. */
struct FabricInfo {
    uint32_t version;
    unsigned char cluster[16];
    uint32_t status, clique, state, health;
};

EXPORT Return nvmlDeviceGetGpuFabricInfoV(Handle device, struct FabricInfo *info) {
    BEGIN("nvmlDeviceGetGpuFabricInfoV");
    GPU(gpu, device, 0);
    NEEDS(info);
    if ((info->version & 0xffffff) < sizeof *info)
        RETURN(ARGUMENT_VERSION_MISMATCH);
    memcpy(info->cluster, gpu->cluster, sizeof info->cluster);
    info->status = SUCCESS;
    info->clique = gpu->clique;
    info->state = gpu->nvlinks && gpu->cc_major >= 9 ? 3 : 0; /* completed, or not supported */
    info->health = 0;
    RETURN(SUCCESS);
}

/* Known to the real library and answered so by many a GPU; present, so that a client learns it by the answer. */
#define ABSENT(call)                                                                                                   \
    EXPORT Return call(void) {                                                                                         \
        BEGIN(#call);                                                                                                  \
        RETURN(NOT_SUPPORTED);                                                                                         \
    }

ABSENT(nvmlDeviceGetProcessUtilization)
ABSENT(nvmlDeviceGetSamples)
ABSENT(nvmlDeviceGetEncoderUtilization)
ABSENT(nvmlDeviceGetDecoderUtilization)
ABSENT(nvmlDeviceGetFanSpeed)
ABSENT(nvmlDeviceGetPcieThroughput)
ABSENT(nvmlDeviceGetPlatformInfo)
ABSENT(nvmlDeviceGetNumaNodeId)
ABSENT(nvmlDeviceGetRowRemapperHistogram)
ABSENT(nvmlDeviceGetNvLinkRemotePciInfo_v2)
ABSENT(nvmlDeviceGetDriverModel)
ABSENT(nvmlDeviceGetDriverModel_v2)
