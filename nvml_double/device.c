/* Everything of one GPU that is not MIG: sessions, identity, memory, activity, processes, events and health. */
#define _GNU_SOURCE
#include "double.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct PciInfo {
    char legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
};
struct Memory {
    unsigned long long total, free, used;
};
struct MemoryV2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};
struct Utilization {
    unsigned gpu, memory;
};
struct ProcessInfo {
    unsigned pid;
    unsigned long long memory;
    unsigned gi, ci;
};
struct EventData {
    Handle device;
    unsigned long long type, data;
    unsigned gi, ci;
};
struct FieldValue {
    uint32_t id, scope;
    int64_t timestamp, latency;
    unsigned type, result;
    union {
        double real;
        unsigned number;
        unsigned long long wide;
    } value;
};
_Static_assert(sizeof(struct PciInfo) == 68 && sizeof(struct MemoryV2) == 40, "infos");
_Static_assert(sizeof(struct ProcessInfo) == 24 && sizeof(struct EventData) == 32, "lists");
_Static_assert(sizeof(struct FieldValue) == 40, "field values");

#define MEMORY_V2 0x02000028u
#define RESERVED_BYTES (512ull << 20)
#define EVENT_SETS 64u
#define EVENT_TYPES 0x8u /* XID errors, the only ones that are ever reported */

/* The open event sets of this process: what each listens to and how far it has read. Handles are numbers here too, so
   that one of another kind, or of a set that was freed while somebody waits on it, is told apart. */
struct EventSet {
    uint64_t number;
    uint32_t gpus;
    unsigned long long mask, read;
};
static struct EventSet sets[EVENT_SETS];
static uint64_t numbers = (uint64_t)KIND_EVENTS << 32;

static struct EventSet *set_of(Handle handle) {
    for (unsigned i = 0; i < EVENT_SETS; i++)
        if (handle && sets[i].number == (uint64_t)(uintptr_t)handle)
            return &sets[i];
    return NULL;
}

void forget_events(void) {
    memset(sets, 0, sizeof sets);
}

int listened(const struct Gpu *gpu) {
    for (unsigned i = 0; i < EVENT_SETS; i++)
        if (sets[i].number && sets[i].gpus >> index_of(gpu) & 1u)
            return 1;
    return 0;
}

EXPORT Return nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    return open_session("nvmlInitWithFlags");
}

EXPORT Return nvmlInit_v2(void) {
    return open_session("nvmlInit_v2");
}

EXPORT Return nvmlShutdown(void) {
    return close_session("nvmlShutdown");
}

EXPORT const char *nvmlErrorString(Return code) {
    static const char *const texts[] = {
        [SUCCESS] = "Success",
        [UNINITIALIZED] = "Uninitialized",
        [INVALID_ARGUMENT] = "Invalid Argument",
        [NOT_SUPPORTED] = "Not Supported",
        [NO_PERMISSION] = "Insufficient Permissions",
        [NOT_FOUND] = "Not Found",
        [INSUFFICIENT_SIZE] = "Insufficient Size",
        [DRIVER_NOT_LOADED] = "Driver Not Loaded",
        [TIMEOUT] = "Timeout",
        [GPU_IS_LOST] = "GPU is lost",
        [OPERATING_SYSTEM] = "The operating system has blocked the request",
        [MISMATCH] = "RM has detected an NVML/RM version mismatch",
        [RESET_REQUIRED] = "GPU requires restart",
        [IN_USE] = "In use by another client",
        [INSUFFICIENT_RESOURCES] = "Insufficient Resources",
        [ARGUMENT_VERSION_MISMATCH] = "Argument version mismatch",
    };
    return code < sizeof texts / sizeof *texts && texts[code] ? texts[code] : "Unknown Error";
}

EXPORT Return nvmlSystemGetDriverVersion(char *version, unsigned length) {
    BEGIN("nvmlSystemGetDriverVersion");
    RETURN(put_text(version, length, state->driver));
}

EXPORT Return nvmlSystemGetNVMLVersion(char *version, unsigned length) {
    BEGIN("nvmlSystemGetNVMLVersion");
    RETURN(put_text(version, length, "13.580.95.05"));
}

EXPORT Return nvmlSystemGetCudaDriverVersion_v2(int *version) {
    BEGIN("nvmlSystemGetCudaDriverVersion_v2");
    NEEDS(version);
    *version = 13000;
    RETURN(SUCCESS);
}

EXPORT Return nvmlSystemGetCudaDriverVersion(int *version) {
    BEGIN("nvmlSystemGetCudaDriverVersion");
    NEEDS(version);
    *version = 13000;
    RETURN(SUCCESS);
}

EXPORT Return nvmlDeviceGetCount_v2(unsigned *count) {
    BEGIN("nvmlDeviceGetCount_v2");
    NEEDS(count);
    *count = state->gpu_count;
    RETURN(SUCCESS);
}

EXPORT Return nvmlDeviceGetHandleByIndex_v2(unsigned index, Handle *device) {
    BEGIN("nvmlDeviceGetHandleByIndex_v2");
    NEEDS(device && index < state->gpu_count);
    if (state->gpus[index].lost)
        RETURN(GPU_IS_LOST);
    *device = handle_of(KIND_GPU, index, 0, 0);
    RETURN(SUCCESS);
}

/* By its UUID, or by the form that drivers before R470 wrote: MIG-<UUID of the GPU>/<gi>/<ci>. */
static int names_mig(const struct Gpu *gpu, unsigned gi, unsigned ci, const char *text) {
    char old[96];
    snprintf(old, sizeof old, "MIG-%s/%u/%u", gpu->uuid, gi, ci);
    const struct ComputeInstance *compute = &gpu->instances[gi].compute[ci];
    return compute->used && (strcmp(compute->uuid, text) == 0 || strcmp(old, text) == 0);
}

EXPORT Return nvmlDeviceGetHandleByUUID(const char *uuid, Handle *device) {
    BEGIN("nvmlDeviceGetHandleByUUID");
    if (!uuid || !device)
        RETURN(INVALID_ARGUMENT);
    for (unsigned i = 0; i < state->gpu_count; i++) {
        struct Gpu *gpu = &state->gpus[i];
        if (strcmp(gpu->uuid, uuid) == 0) {
            *device = handle_of(KIND_GPU, i, 0, 0);
            RETURN(gpu->lost ? GPU_IS_LOST : SUCCESS);
        }
        for (unsigned gi = 0; gi < INSTANCES; gi++)
            for (unsigned ci = 0; gpu->instances[gi].used && ci < COMPUTE; ci++)
                if (names_mig(gpu, gi, ci, uuid)) {
                    *device = handle_of(KIND_MIG, i, gi, ci);
                    RETURN(gpu->lost ? GPU_IS_LOST : SUCCESS);
                }
    }
    RETURN(NOT_FOUND);
}

static void bus_text(const struct Gpu *gpu, char *text, size_t length) {
    snprintf(text, length, "00000000:%02X:00.0", gpu->bus);
}

EXPORT Return nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, Handle *device) {
    BEGIN("nvmlDeviceGetHandleByPciBusId_v2");
    NEEDS(bus_id && device);
    for (unsigned i = 0; i < state->gpu_count; i++) {
        char text[32];
        bus_text(&state->gpus[i], text, sizeof text);
        if (strcasecmp(text, bus_id) == 0 || strcasecmp(text + 4, bus_id) == 0) {
            *device = handle_of(KIND_GPU, i, 0, 0);
            RETURN(state->gpus[i].lost ? GPU_IS_LOST : SUCCESS);
        }
    }
    RETURN(NOT_FOUND);
}

EXPORT Return nvmlDeviceGetName(Handle device, char *name, unsigned length) {
    BEGIN("nvmlDeviceGetName");
    unsigned index, gi, ci;
    GPU(gpu, device, 1);
    if (!handle_is(device, KIND_MIG, &index, &gi, &ci))
        RETURN(put_text(name, length, gpu->name));
    char text[160];
    snprintf(text, sizeof text, "%s MIG %s", gpu->name, gpu->profiles[gpu->instances[gi].profile].name);
    RETURN(put_text(name, length, text));
}

EXPORT Return nvmlDeviceGetUUID(Handle device, char *uuid, unsigned length) {
    BEGIN("nvmlDeviceGetUUID");
    unsigned index, gi, ci;
    GPU(gpu, device, 1);
    int mig = handle_is(device, KIND_MIG, &index, &gi, &ci);
    RETURN(put_text(uuid, length, mig ? gpu->instances[gi].compute[ci].uuid : gpu->uuid));
}

EXPORT Return nvmlDeviceGetIndex(Handle device, unsigned *number) {
    BEGIN("nvmlDeviceGetIndex");
    unsigned index, gi, ci;
    GPU(gpu, device, 1);
    NEEDS(number);
    int mig = handle_is(device, KIND_MIG, &index, &gi, &ci);
    *number = mig ? gpu->instances[gi].compute[ci].index : index_of(gpu);
    RETURN(SUCCESS);
}

EXPORT Return nvmlDeviceGetSerial(Handle device, char *serial, unsigned length) {
    BEGIN("nvmlDeviceGetSerial");
    GPU(gpu, device, 0);
    RETURN(put_text(serial, length, gpu->serial));
}

EXPORT Return nvmlDeviceGetPciInfo_v3(Handle device, struct PciInfo *info) {
    BEGIN("nvmlDeviceGetPciInfo_v3");
    GPU(gpu, device, 0);
    NEEDS(info);
    memset(info, 0, sizeof *info);
    info->bus = gpu->bus;
    info->device_id = gpu->pci_device_id << 16 | 0x10deu;
    bus_text(gpu, info->bus_id, sizeof info->bus_id);
    snprintf(info->legacy, sizeof info->legacy, "0000:%02X:00.0", gpu->bus);
    RETURN(SUCCESS);
}

EXPORT Return nvmlDeviceGetCudaComputeCapability(Handle device, int *major, int *minor) {
    BEGIN("nvmlDeviceGetCudaComputeCapability");
    GPU(gpu, device, 1);
    NEEDS(major && minor);
    *major = (int)gpu->cc_major;
    *minor = (int)gpu->cc_minor;
    RETURN(SUCCESS);
}

/* A call that answers with one number of the GPU. */
#define NUMBER(call, mig_too, expression)                                                                              \
    EXPORT Return call(Handle device, unsigned *value) {                                                               \
        BEGIN(#call);                                                                                                  \
        GPU(gpu, device, mig_too);                                                                                     \
        if (!value)                                                                                                    \
            RETURN(INVALID_ARGUMENT);                                                                                  \
        *value = (expression);                                                                                         \
        RETURN(SUCCESS);                                                                                               \
    }

NUMBER(nvmlDeviceGetMinorNumber, 0, gpu->minor)
NUMBER(nvmlDeviceGetArchitecture, 0, gpu->architecture)
NUMBER(nvmlDeviceGetVirtualizationMode, 0, gpu->passthrough ? 1u : 0u)
NUMBER(nvmlDeviceGetPersistenceMode, 0, gpu->persistence)
NUMBER(nvmlDeviceGetPowerUsage, 0, gpu->power_mw)
NUMBER(nvmlDeviceGetPowerManagementLimit, 0, gpu->power_limit_mw)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, 0, gpu->power_limit_mw)
NUMBER(nvmlDeviceGetComputeMode, 0, gpu->compute_mode)
NUMBER(nvmlDeviceGetDisplayActive, 0, 0 * gpu->minor)
NUMBER(nvmlDeviceGetDisplayMode, 0, 0 * gpu->minor)
NUMBER(nvmlDeviceGetPerformanceState, 0, gpu->busy ? 0u : 8u)
NUMBER(nvmlDeviceGetModuleId, 0, gpu->minor + 1)

EXPORT Return nvmlDeviceSetPersistenceMode(Handle device, unsigned mode) {
    BEGIN("nvmlDeviceSetPersistenceMode");
    GPU(gpu, device, 0);
    gpu->persistence = mode ? 1 : 0;
    RETURN(SUCCESS);
}

EXPORT Return nvmlDeviceGetTemperature(Handle device, unsigned sensor, unsigned *degrees) {
    BEGIN("nvmlDeviceGetTemperature");
    GPU(gpu, device, 0);
    NEEDS(degrees && sensor == 0);
    *degrees = gpu->temperature;
    RETURN(SUCCESS);
}

EXPORT Return nvmlDeviceGetClockInfo(Handle device, unsigned type, unsigned *mhz) {
    BEGIN("nvmlDeviceGetClockInfo");
    GPU(gpu, device, 0);
    NEEDS(mhz && type <= 3);
    *mhz = type == 2 ? gpu->memory_clock_mhz : gpu->busy ? gpu->clock_mhz : gpu->clock_mhz / 6;
    RETURN(SUCCESS);
}

EXPORT Return nvmlDeviceGetMaxClockInfo(Handle device, unsigned type, unsigned *mhz) {
    BEGIN("nvmlDeviceGetMaxClockInfo");
    GPU(gpu, device, 0);
    NEEDS(mhz && type <= 3);
    *mhz = type == 2 ? gpu->memory_clock_mhz : gpu->clock_mhz;
    RETURN(SUCCESS);
}

EXPORT Return nvmlDeviceGetCurrentClocksEventReasons(Handle device, unsigned long long *reasons) {
    BEGIN("nvmlDeviceGetCurrentClocksEventReasons");
    GPU(gpu, device, 0);
    NEEDS(reasons);
    *reasons = gpu->busy ? 0 : 1; /* idle */
    RETURN(SUCCESS);
}

EXPORT Return nvmlDeviceGetTotalEnergyConsumption(Handle device, unsigned long long *millijoules) {
    BEGIN("nvmlDeviceGetTotalEnergyConsumption");
    GPU(gpu, device, 0);
    NEEDS(millijoules);
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    double passed = (double)now.tv_sec + (double)now.tv_nsec / 1e9 - gpu->energy_at;
    *millijoules = gpu->energy_mj + (passed > 0 ? (unsigned long long)(passed * gpu->power_mw) : 0);
    RETURN(SUCCESS);
}

/* Bytes that processes use: all of them, or those in one GPU instance. */
static unsigned long long held(const struct Gpu *gpu, unsigned gi) {
    unsigned long long bytes = 0;
    for (unsigned i = 0; i < PROCESSES; i++)
        if (gpu->processes[i].used && (gi == NO_ID || gpu->processes[i].gi == gi))
            bytes += gpu->processes[i].memory_bytes;
    return bytes;
}

/* The memory of a GPU, or of the GPU instance behind a MIG handle: its compute instances share it. */
static struct MemoryV2 memory_of(Handle device, const struct Gpu *gpu) {
    unsigned index, gi, ci;
    struct MemoryV2 memory = {MEMORY_V2, gpu->memory_bytes, RESERVED_BYTES, 0, gpu->memory_used};
    if (handle_is(device, KIND_MIG, &index, &gi, &ci)) {
        memory.total = (unsigned long long)gpu->profiles[gpu->instances[gi].profile].memory_mib << 20;
        memory.reserved = 0;
        memory.used = held(gpu, gi);
    } else if (held(gpu, NO_ID) > memory.used) {
        memory.used = held(gpu, NO_ID);
    }
    if (memory.used > memory.total - memory.reserved)
        memory.used = memory.total - memory.reserved;
    memory.free = memory.total - memory.reserved - memory.used;
    return memory;
}

EXPORT Return nvmlDeviceGetMemoryInfo(Handle device, struct Memory *memory) {
    BEGIN("nvmlDeviceGetMemoryInfo");
    GPU(gpu, device, 1);
    if (!memory)
        RETURN(INVALID_ARGUMENT);
    struct MemoryV2 found = memory_of(device, gpu);
    /* Version 1 counts what the driver keeps for itself as used. */
    *memory = (struct Memory){found.total, found.free, found.reserved + found.used};
    RETURN(SUCCESS);
}

EXPORT Return nvmlDeviceGetMemoryInfo_v2(Handle device, struct MemoryV2 *memory) {
    BEGIN("nvmlDeviceGetMemoryInfo_v2");
    GPU(gpu, device, 1);
    if (!memory)
        RETURN(INVALID_ARGUMENT);
    if (memory->version != MEMORY_V2)
        RETURN(ARGUMENT_VERSION_MISMATCH);
    *memory = memory_of(device, gpu);
    RETURN(SUCCESS);
}

EXPORT Return nvmlDeviceGetBAR1MemoryInfo(Handle device, struct Memory *memory) {
    BEGIN("nvmlDeviceGetBAR1MemoryInfo");
    GPU(gpu, device, 1);
    NEEDS(memory);
    (void)gpu;
    /* Here the order is total, free, used as well. */
    *memory = (struct Memory){128ull << 30, (128ull << 30) - (2ull << 20), 2ull << 20};
    RETURN(SUCCESS);
}

EXPORT Return nvmlDeviceGetUtilizationRates(Handle device, struct Utilization *rates) {
    BEGIN("nvmlDeviceGetUtilizationRates");
    GPU(gpu, device, 1);
    NEEDS(rates);
    if (gpu->mig)
        RETURN(NOT_SUPPORTED);
    *rates = (struct Utilization){gpu->busy, gpu->memory_busy};
    RETURN(SUCCESS);
}

static Return processes(Handle device, unsigned *count, struct ProcessInfo *infos) {
    unsigned index, mine, ci, needed = 0;
    struct Gpu *gpu = gpu_of(device, 1);
    if (!gpu || !count || (!infos && *count))
        return INVALID_ARGUMENT;
    if (gpu->lost)
        return GPU_IS_LOST;
    int mig = handle_is(device, KIND_MIG, &index, &mine, &ci);
    for (unsigned i = 0; i < PROCESSES; i++) {
        const struct Process *p = &gpu->processes[i];
        if (!p->used || (mig && (p->gi != mine || p->ci != ci)))
            continue;
        if (needed < *count)
            infos[needed] = (struct ProcessInfo){p->pid, p->memory_bytes, p->gi, p->ci};
        needed++;
    }
    Return result = needed > *count ? INSUFFICIENT_SIZE : SUCCESS;
    *count = needed;
    return result;
}

EXPORT Return nvmlDeviceGetComputeRunningProcesses_v3(Handle device, unsigned *count, struct ProcessInfo *infos) {
    BEGIN("nvmlDeviceGetComputeRunningProcesses_v3");
    RETURN(processes(device, count, infos));
}

static Return no_processes(const char *call, Handle device, unsigned *count) {
    BEGIN(call);
    GPU(gpu, device, 1);
    NEEDS(count);
    (void)gpu;
    *count = 0;
    RETURN(SUCCESS);
}

EXPORT Return nvmlDeviceGetGraphicsRunningProcesses_v3(Handle device, unsigned *count, struct ProcessInfo *infos) {
    (void)infos;
    return no_processes("nvmlDeviceGetGraphicsRunningProcesses_v3", device, count);
}

EXPORT Return nvmlDeviceGetMPSComputeRunningProcesses_v3(Handle device, unsigned *count, struct ProcessInfo *infos) {
    (void)infos;
    return no_processes("nvmlDeviceGetMPSComputeRunningProcesses_v3", device, count);
}

EXPORT Return nvmlDeviceGetSupportedEventTypes(Handle device, unsigned long long *types) {
    BEGIN("nvmlDeviceGetSupportedEventTypes");
    GPU(gpu, device, 0);
    NEEDS(types);
    (void)gpu;
    *types = EVENT_TYPES;
    RETURN(SUCCESS);
}

EXPORT Return nvmlEventSetCreate(Handle *handle) {
    BEGIN("nvmlEventSetCreate");
    NEEDS(handle);
    for (unsigned i = 0; i < EVENT_SETS; i++)
        if (!sets[i].number) {
            sets[i] = (struct EventSet){.number = ++numbers, .read = state->event_sequence};
            *handle = (Handle)(uintptr_t)numbers;
            RETURN(SUCCESS);
        }
    RETURN(INSUFFICIENT_RESOURCES);
}

EXPORT Return nvmlEventSetFree(Handle handle) {
    BEGIN("nvmlEventSetFree");
    struct EventSet *set = set_of(handle);
    NEEDS(set);
    *set = (struct EventSet){0};
    RETURN(SUCCESS);
}

EXPORT Return nvmlDeviceRegisterEvents(Handle device, unsigned long long types, Handle handle) {
    BEGIN("nvmlDeviceRegisterEvents");
    GPU(gpu, device, 0);
    struct EventSet *set = set_of(handle);
    NEEDS(set);
    if (types & ~(unsigned long long)EVENT_TYPES)
        RETURN(NOT_SUPPORTED);
    set->gpus |= 1u << index_of(gpu);
    set->mask |= types;
    RETURN(SUCCESS);
}

/* The oldest event that this set has not read and listens to. */
static const struct Event *next_event(struct EventSet *set) {
    const struct Event *next = NULL;
    for (unsigned i = 0; i < EVENTS; i++) {
        const struct Event *event = &state->events[i];
        if (event->sequence > set->read && event->type & set->mask && set->gpus & 1u << event->gpu &&
            (!next || event->sequence < next->sequence))
            next = event;
    }
    return next;
}

/* Like the driver: the wait itself fails while a GPU of the set is off the bus, after what was heard before. */
static Return hear(struct EventSet *set, struct EventData *data) {
    const struct Event *event = next_event(set);
    if (event) {
        set->read = event->sequence;
        *data =
            (struct EventData){handle_of(KIND_GPU, event->gpu, 0, 0), event->type, event->data, event->gi, event->ci};
        return SUCCESS;
    }
    for (unsigned i = 0; i < state->gpu_count; i++)
        if (set->gpus & 1u << i && state->gpus[i].lost)
            return GPU_IS_LOST;
    return TIMEOUT;
}

EXPORT Return nvmlEventSetWait_v2(Handle handle, struct EventData *data, unsigned timeout_ms) {
    BEGIN("nvmlEventSetWait_v2");
    NEEDS(data);
    const struct timespec pause = {0, 50000000};
    for (unsigned waited = 0;; waited += 50) {
        struct EventSet *set = set_of(handle);
        NEEDS(set);
        Return result = hear(set, data);
        if (result != TIMEOUT || waited >= timeout_ms)
            RETURN(result);
        give();
        nanosleep(&pause, NULL);
        if (take() != SUCCESS)
            return UNINITIALIZED;
    }
}

static void field_value(const struct Gpu *gpu, struct FieldValue *field) {
    field->timestamp = (int64_t)time(NULL) * 1000000;
    field->latency = 0;
    field->type = 1;
    field->result = SUCCESS;
    field->value.wide = 0;
    switch (field->id) {
    case 142: /* rows remapped: correctable, uncorrectable, pending, failed */
    case 143:
        break;
    case 144:
        field->value.number = gpu->remap_pending;
        break;
    case 145:
        field->value.number = gpu->remap_failed;
        break;
    case 184: /* MIG mode changes without a reset */
        field->value.number = gpu->profile_count && !gpu->needs_reset;
        break;
    case 185:
    case 186:
        field->value.number = gpu->power_mw;
        break;
    case 199: /* profiles can be asked for while MIG is off */
        field->value.number = gpu->profile_count ? 1 : 0;
        break;
    case 230:
        field->value.number = gpu->recovery_action;
        break;
    default:
        field->result = NOT_SUPPORTED;
    }
}

EXPORT Return nvmlDeviceGetFieldValues(Handle device, int count, struct FieldValue *values) {
    BEGIN("nvmlDeviceGetFieldValues");
    GPU(gpu, device, 0);
    NEEDS(values && count > 0);
    for (int i = 0; i < count; i++)
        field_value(gpu, &values[i]);
    RETURN(SUCCESS);
}

EXPORT Return nvmlDeviceGetRemappedRows(Handle device, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                                        unsigned *failed) {
    BEGIN("nvmlDeviceGetRemappedRows");
    GPU(gpu, device, 0);
    NEEDS(corrected && uncorrected && pending && failed);
    if (gpu->mig)
        RETURN(NOT_SUPPORTED);
    *corrected = 0;
    *uncorrected = gpu->remap_pending || gpu->remap_failed ? 1 : 0;
    *pending = gpu->remap_pending;
    *failed = gpu->remap_failed;
    RETURN(SUCCESS);
}

EXPORT Return nvmlDeviceGetEccMode(Handle device, unsigned *current, unsigned *pending) {
    BEGIN("nvmlDeviceGetEccMode");
    GPU(gpu, device, 0);
    NEEDS(current && pending);
    (void)gpu;
    *current = *pending = 1;
    RETURN(SUCCESS);
}

EXPORT Return nvmlDeviceGetTotalEccErrors(Handle device, unsigned type, unsigned counter, unsigned long long *errors) {
    BEGIN("nvmlDeviceGetTotalEccErrors");
    GPU(gpu, device, 1);
    NEEDS(errors && type <= 1 && counter <= 1);
    *errors = type == 1 ? gpu->ecc_uncorrected : 0;
    RETURN(SUCCESS);
}
