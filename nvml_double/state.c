/* The shared state file, its lock, faults on request, sessions and handles. */
#define _GNU_SOURCE
#include "double.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
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
/* flock() belongs to the open file, which the threads of a process share: they take turns by a mutex first. The kernel
   drops the flock of a process that dies, so a killed client blocks nobody. */
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t forks_watched = PTHREAD_ONCE_INIT;

static void forget(void) {
    forget_events();
    munmap(state, sizeof(struct State));
    close(file);
    state = NULL;
    file = -1;
}

/* A forked child starts uninitialized, with a mutex that no thread of its parent holds, and without the parent's file:
   its copy would keep the parent's flock alive after the parent's death. */
static void in_child(void) {
    turn = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    if (initialized)
        forget();
    initialized = 0;
}

static void watch_forks(void) {
    pthread_atfork(NULL, NULL, in_child);
}

Return take(void) {
    pthread_mutex_lock(&turn);
    if (!initialized) {
        pthread_mutex_unlock(&turn);
        return UNINITIALIZED;
    }
    while (flock(file, LOCK_EX) != 0 && errno == EINTR) {
    }
    return SUCCESS;
}

void give(void) {
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
        state = NULL;
        close(file);
        return OPERATING_SYSTEM;
    }
    if (memcmp(state->magic, STATE_MAGIC, sizeof state->magic) != 0 || state->version != STATE_VERSION) {
        forget();
        return MISMATCH;
    }
    return SUCCESS;
}

/* When a process started, by /proc (field 22, in ticks since boot); 0 when it is gone or only waits to be reaped.
   With it a number that another process got later is not taken for the first one. */
static uint64_t birth(uint32_t pid) {
    char path[32], text[1024];
    snprintf(path, sizeof path, "/proc/%u/stat", pid);
    int stat = open(path, O_RDONLY | O_CLOEXEC);
    if (stat < 0)
        return 0;
    ssize_t length = read(stat, text, sizeof text - 1);
    close(stat);
    text[length > 0 ? length : 0] = 0;
    char *at = strrchr(text, ')'); /* the name before it may hold anything */
    if (!at || strlen(at) < 3 || at[2] == 'Z' || at[2] == 'X')
        return 0;
    at++;
    for (int field = 3; field < 22 && at; field++)
        at = strchr(at + 1, ' ');
    return at ? strtoull(at, NULL, 10) + 1 : 0;
}

static int alive(const struct Session *session) {
    return session->count && birth(session->pid) == session->born;
}

/* This process's own entry, a new one if need be; NULL when the table is full of living clients. */
static struct Session *own_session(void) {
    uint32_t pid = (uint32_t)getpid();
    uint64_t born = birth(pid);
    struct Session *vacant = NULL;
    for (unsigned i = 0; i < SESSIONS; i++) {
        struct Session *session = &state->sessions[i];
        if (session->count && session->pid == pid && session->born == born)
            return session;
        if (!vacant && !alive(session))
            vacant = session;
    }
    if (vacant)
        *vacant = (struct Session){.pid = pid, .born = born};
    return vacant;
}

static void drop(void) {
    pthread_mutex_lock(&turn);
    if (initialized && --initialized == 0)
        forget();
    pthread_mutex_unlock(&turn);
}

Return open_session(const char *call) {
    pthread_once(&forks_watched, watch_forks);
    pthread_mutex_lock(&turn);
    Return result = initialized ? SUCCESS : map_state();
    if (result == SUCCESS)
        initialized++;
    pthread_mutex_unlock(&turn);
    if (result != SUCCESS)
        return result;
    result = enter(call);
    if (result != SUCCESS) {
        drop();
        return result;
    }
    struct Session *session = own_session();
    if (session)
        session->count++;
    return release(call, SUCCESS);
}

Return close_session(const char *call) {
    Return result = enter(call);
    if (result != SUCCESS)
        return result;
    struct Session *session = own_session();
    if (session && session->count)
        session->count--;
    result = release(call, SUCCESS);
    drop();
    return result;
}

int foreign_session(void) {
    for (unsigned i = 0; i < SESSIONS; i++)
        if (state->sessions[i].pid != (uint32_t)getpid() && alive(&state->sessions[i]))
            return 1;
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

static void pause_for(double seconds) {
    struct timespec left = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {
    }
}

Return enter(const char *call) {
    Return result = take();
    if (result != SUCCESS)
        return result;
    struct Fault *fault = due(call, 0);
    if (!fault)
        return SUCCESS;
    if (fault->kind == KILL_BEFORE)
        kill(getpid(), SIGKILL);
    if (fault->kind == HANG) {
        /* Hangs alone: the rest of the machine goes on. */
        double seconds = fault->seconds;
        give();
        pause_for(seconds);
        return take();
    }
    result = fault->code;
    give();
    return result;
}

Return release(const char *call, Return result) {
    if (due(call, 1))
        kill(getpid(), SIGKILL);
    give();
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
