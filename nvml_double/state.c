/* The shared state file, its lock, faults on request, sessions and handles. */
#define _GNU_SOURCE
#include "double.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct State *state;

static int file = -1;
static unsigned initialized;
static pid_t owner;
/* flock() belongs to the open file, which the threads of a process share: they take turns by a mutex first. The kernel
   drops the flock of a process that dies, so a killed client blocks nobody. */
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;

static void lock(void) {
    pthread_mutex_lock(&turn);
    while (flock(file, LOCK_EX) != 0 && errno == EINTR) {
    }
}

static void unlock(void) {
    flock(file, LOCK_UN);
    pthread_mutex_unlock(&turn);
}

static Return map_state(void) {
    const char *path = getenv("FALLOW_NVML_STATE");
    struct stat found;
    if (!path)
        return DRIVER_NOT_LOADED;
    file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0)
        return DRIVER_NOT_LOADED;
    if (fstat(file, &found) != 0 || found.st_size != (off_t)sizeof(struct State)) {
        close(file);
        return MISMATCH;
    }
    state = mmap(NULL, sizeof(struct State), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (state == MAP_FAILED) {
        close(file);
        return OPERATING_SYSTEM;
    }
    if (memcmp(state->magic, STATE_MAGIC, sizeof state->magic) != 0 || state->version != STATE_VERSION) {
        munmap(state, sizeof(struct State));
        close(file);
        return MISMATCH;
    }
    return SUCCESS;
}

static struct Session *session_of(uint32_t pid) {
    struct Session *vacant = NULL;
    for (unsigned i = 0; i < SESSIONS; i++) {
        struct Session *session = &state->sessions[i];
        if (session->count && session->pid == pid)
            return session;
        if (!vacant && (!session->count || kill((pid_t)session->pid, 0) != 0))
            vacant = session;
    }
    if (vacant) {
        vacant->pid = pid;
        vacant->count = 0;
    }
    return vacant;
}

/* A forked child has no session of its own until it initializes again. */
static int ready(void) {
    return initialized && owner == getpid();
}

Return open_session(void) {
    if (!ready()) {
        Return mapped = map_state();
        if (mapped != SUCCESS)
            return mapped;
        initialized = 0;
        owner = getpid();
    }
    initialized++;
    lock();
    struct Session *session = session_of((uint32_t)getpid());
    if (session)
        session->count++;
    unlock();
    return SUCCESS;
}

void close_session(void) {
    lock();
    struct Session *session = session_of((uint32_t)getpid());
    if (session && session->count)
        session->count--;
    unlock();
    if (--initialized == 0) {
        munmap(state, sizeof(struct State));
        close(file);
        file = -1;
    }
}

int foreign_session(void) {
    for (unsigned i = 0; i < SESSIONS; i++) {
        struct Session *session = &state->sessions[i];
        if (session->count && session->pid != (uint32_t)getpid() && kill((pid_t)session->pid, 0) == 0)
            return 1;
    }
    return 0;
}

static struct Fault *due(const char *call, int after) {
    for (unsigned i = 0; i < FAULTS; i++) {
        struct Fault *fault = &state->faults[i];
        if (fault->times && (fault->kind == KILL_AFTER) == after && strncmp(fault->call, call, sizeof fault->call) == 0) {
            fault->times--;
            return fault;
        }
    }
    return NULL;
}

Return enter(const char *call) {
    if (!ready())
        return UNINITIALIZED;
    lock();
    struct Fault *fault = due(call, 0);
    if (!fault)
        return SUCCESS;
    if (fault->kind == KILL_BEFORE)
        kill(getpid(), SIGKILL);
    if (fault->kind == HANG) {
        /* Hangs alone: the rest of the machine goes on. */
        struct timespec pause = {(time_t)fault->seconds, (long)((fault->seconds - (time_t)fault->seconds) * 1e9)};
        unlock();
        nanosleep(&pause, NULL);
        lock();
        return SUCCESS;
    }
    Return code = fault->code;
    unlock();
    return code;
}

Return release(const char *call, Return result) {
    if (due(call, 1))
        kill(getpid(), SIGKILL);
    unlock();
    return result;
}

Handle handle_of(enum Kind kind, unsigned gpu, unsigned gi, unsigned ci) {
    return (Handle)(uintptr_t)((uint64_t)kind << 32 | (uint64_t)(gpu + 1) << 16 | gi << 8 | ci);
}

int handle_is(Handle handle, enum Kind kind, unsigned *gpu, unsigned *gi, unsigned *ci) {
    uint64_t number = (uint64_t)(uintptr_t)handle;
    unsigned index = (unsigned)(number >> 16 & 0xffff);
    if (number >> 32 != (uint64_t)kind || index == 0 || index > state->gpu_count)
        return 0;
    *gpu = index - 1;
    *gi = (unsigned)(number >> 8 & 0xff);
    *ci = (unsigned)(number & 0xff);
    return *gi < INSTANCES && *ci < COMPUTE;
}

struct Gpu *gpu_of(Handle handle, int mig_too) {
    unsigned gpu, gi, ci;
    if (handle_is(handle, KIND_GPU, &gpu, &gi, &ci))
        return &state->gpus[gpu];
    if (mig_too && handle_is(handle, KIND_MIG, &gpu, &gi, &ci)) {
        struct GpuInstance *instance = &state->gpus[gpu].instances[gi];
        return instance->used && instance->compute[ci].used ? &state->gpus[gpu] : NULL;
    }
    return NULL;
}

struct GpuInstance *gi_of(Handle handle, struct Gpu **gpu) {
    unsigned index, gi, ci;
    if (!handle_is(handle, KIND_GI, &index, &gi, &ci) || !state->gpus[index].instances[gi].used)
        return NULL;
    *gpu = &state->gpus[index];
    return &(*gpu)->instances[gi];
}

struct ComputeInstance *ci_of(Handle handle, struct Gpu **gpu, struct GpuInstance **gi) {
    unsigned index, instance, ci;
    if (!handle_is(handle, KIND_CI, &index, &instance, &ci))
        return NULL;
    *gpu = &state->gpus[index];
    *gi = &(*gpu)->instances[instance];
    return (*gi)->used && (*gi)->compute[ci].used ? &(*gi)->compute[ci] : NULL;
}

unsigned index_of(const struct Gpu *gpu) {
    return (unsigned)(gpu - state->gpus);
}

Return put_text(char *target, unsigned length, const char *text) {
    size_t needed = strlen(text) + 1;
    if (!target)
        return INVALID_ARGUMENT;
    if (needed > length)
        return INSUFFICIENT_SIZE;
    memcpy(target, text, needed);
    return SUCCESS;
}
