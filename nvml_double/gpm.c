/* GPU performance monitoring: two samples and their mean. Also of a GPU instance, where utilisation knows nothing. */
#include "double.h"

#include <stdlib.h>
#include <time.h>

struct Sample {
    double at, sm, tensor, dram;
    int taken;
};

struct Metric {
    unsigned id;
    Return result;
    double value;
    struct {
        const char *short_name, *long_name, *unit;
    } info;
};

struct MetricsGet {
    unsigned version, count;
    struct Sample *first, *second;
    struct Metric metrics[];
};

struct Support {
    unsigned version, supported;
};

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* The rate is that of this moment: who changes it between two samples sees it in the next pair. */
static void take_sample(struct Sample *sample, double busy, double tensor, double dram) {
    sample->at = now();
    sample->sm = busy;
    sample->tensor = tensor;
    sample->dram = dram;
    sample->taken = 1;
}

EXPORT Return nvmlGpmQueryDeviceSupport(Handle device, struct Support *support) {
    BEGIN("nvmlGpmQueryDeviceSupport");
    GPU(gpu, device, 0);
    NEEDS(support);
    support->supported = gpu->cc_major >= 9; /* from Hopper on */
    RETURN(SUCCESS);
}

EXPORT Return nvmlGpmSampleAlloc(struct Sample **sample) {
    BEGIN("nvmlGpmSampleAlloc");
    NEEDS(sample);
    *sample = calloc(1, sizeof **sample);
    RETURN(*sample ? SUCCESS : INSUFFICIENT_RESOURCES);
}

EXPORT Return nvmlGpmSampleFree(struct Sample *sample) {
    BEGIN("nvmlGpmSampleFree");
    NEEDS(sample);
    free(sample);
    RETURN(SUCCESS);
}

EXPORT Return nvmlGpmSampleGet(Handle device, struct Sample *sample) {
    BEGIN("nvmlGpmSampleGet");
    GPU(gpu, device, 0);
    NEEDS(sample);
    if (gpu->cc_major < 9)
        RETURN(NOT_SUPPORTED);
    take_sample(sample, gpu->busy, gpu->tensor_busy, gpu->memory_busy);
    RETURN(SUCCESS);
}

EXPORT Return nvmlGpmMigSampleGet(Handle device, unsigned gi, struct Sample *sample) {
    BEGIN("nvmlGpmMigSampleGet");
    GPU(gpu, device, 0);
    NEEDS(sample && gi < INSTANCES && gpu->instances[gi].used);
    if (gpu->cc_major < 9 || !gpu->mig)
        RETURN(NOT_SUPPORTED);
    double busy = gpu->instances[gi].busy;
    take_sample(sample, busy, busy * gpu->tensor_busy / 100, busy);
    RETURN(SUCCESS);
}

EXPORT Return nvmlGpmMetricsGet(struct MetricsGet *asked) {
    BEGIN("nvmlGpmMetricsGet");
    NEEDS(asked && asked->first && asked->second && asked->first->taken && asked->second->taken);
    NEEDS(asked->second->at > asked->first->at);
    for (unsigned i = 0; i < asked->count; i++) {
        struct Metric *metric = &asked->metrics[i];
        metric->result = SUCCESS;
        switch (metric->id) {
        case 1: /* graphics engine, SMs */
        case 2:
            metric->value = (asked->first->sm + asked->second->sm) / 2;
            break;
        case 5: /* any tensor pipe */
            metric->value = (asked->first->tensor + asked->second->tensor) / 2;
            break;
        case 10: /* DRAM bandwidth */
            metric->value = (asked->first->dram + asked->second->dram) / 2;
            break;
        default:
            metric->result = NOT_SUPPORTED;
        }
    }
    RETURN(SUCCESS);
}
