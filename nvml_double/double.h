/* What the files of the double share: the state under its lock, handles, and the frame of every call. */
#pragma once

#include "layout.h"

#include <stddef.h>

#define EXPORT __attribute__((visibility("default")))

typedef unsigned int Return;
typedef void *Handle;

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NO_PERMISSION = 4,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    TIMEOUT = 10,
    GPU_IS_LOST = 15,
    RESET_REQUIRED = 16,
    OPERATING_SYSTEM = 17,
    MISMATCH = 18,
    IN_USE = 19,
    INSUFFICIENT_RESOURCES = 23,
    ARGUMENT_VERSION_MISMATCH = 25,
};

#define NO_ID 0xffffffffu

extern struct State *state;

/* Takes the lock and plays a fault that is due; release() plays the second half and gives the lock back. */
Return enter(const char *call);
Return release(const char *call, Return result);
/* The lock alone, for a call that waits in between. take() answers UNINITIALIZED, without the lock, after a shutdown. */
Return take(void);
void give(void);
Return open_session(const char *call);
Return close_session(const char *call);
int foreign_session(void);
/* Whether an event set of this process listens to the GPU. */
int listened(const struct Gpu *gpu);
void forget_events(void);

/* Handles are numbers in a pointer's clothes: kind, GPU, GPU instance, compute instance. */
enum Kind { KIND_GPU = 1, KIND_MIG, KIND_GI, KIND_CI, KIND_EVENTS };
Handle handle_of(enum Kind kind, unsigned gpu, unsigned gi, unsigned ci);
int handle_is(Handle handle, enum Kind kind, unsigned *gpu, unsigned *gi, unsigned *ci);

/* The GPU of a GPU or MIG handle; 0 for anything else or a MIG device that is gone. */
struct Gpu *gpu_of(Handle handle, int mig_too);
struct GpuInstance *gi_of(Handle handle, struct Gpu **gpu);
struct ComputeInstance *ci_of(Handle handle, struct Gpu **gpu, struct GpuInstance **gi);
unsigned index_of(const struct Gpu *gpu);

/* MIG, in mig.c. */
struct Profile *profile_of(struct Gpu *gpu, const struct GpuInstance *gi);
unsigned gi_id(const struct Gpu *gpu, const struct GpuInstance *gi);
uint32_t span(unsigned start, unsigned size);

Return put_text(char *target, unsigned length, const char *text);

#define BEGIN(call)                                                                                                    \
    const char *const this_call = call;                                                                                \
    do {                                                                                                               \
        Return entered = enter(this_call);                                                                             \
        if (entered != SUCCESS)                                                                                        \
            return entered;                                                                                            \
    } while (0)
#define RETURN(result) return release(this_call, (result))

/* Where an answer must go, and what must hold of a question. */
#define NEEDS(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            RETURN(INVALID_ARGUMENT);                                                                                  \
    } while (0)

/* The GPU behind a handle, or the answer that a real driver gives. */
#define GPU(gpu, handle, mig_too)                                                                                      \
    struct Gpu *gpu = gpu_of(handle, mig_too);                                                                         \
    do {                                                                                                               \
        if (!gpu)                                                                                                      \
            RETURN(INVALID_ARGUMENT);                                                                                  \
        if (gpu->lost)                                                                                                 \
            RETURN(GPU_IS_LOST);                                                                                       \
    } while (0)

/* The same for the handle of a GPU instance, and of a compute instance. */
#define INSTANCE(gpu, gi, handle)                                                                                      \
    struct Gpu *gpu = NULL;                                                                                            \
    struct GpuInstance *gi = gi_of(handle, &gpu);                                                                      \
    do {                                                                                                               \
        if (!gi)                                                                                                       \
            RETURN(INVALID_ARGUMENT);                                                                                  \
        if (gpu->lost)                                                                                                 \
            RETURN(GPU_IS_LOST);                                                                                       \
    } while (0)
#define COMPUTE_INSTANCE(gpu, gi, ci, handle)                                                                          \
    struct Gpu *gpu = NULL;                                                                                            \
    struct GpuInstance *gi = NULL;                                                                                     \
    struct ComputeInstance *ci = ci_of(handle, &gpu, &gi);                                                             \
    do {                                                                                                               \
        if (!ci)                                                                                                       \
            RETURN(INVALID_ARGUMENT);                                                                                  \
        if (gpu->lost)                                                                                                 \
            RETURN(GPU_IS_LOST);                                                                                       \
    } while (0)
