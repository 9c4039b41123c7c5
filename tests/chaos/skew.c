/* A clock that goes wrong: preloaded into a process, it adds seconds to the time of day and to nothing else. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

/* Seconds by which the clock of this process goes wrong: the first eight bytes of the file SKEW_FILE, as they are now. */
static volatile const long long *skew;

__attribute__((constructor)) static void open_skew(void) {
    const char *path = getenv("SKEW_FILE");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file >= 0) {
        void *seen = mmap(NULL, sizeof *skew, PROT_READ, MAP_SHARED, file, 0);
        skew = seen == MAP_FAILED ? NULL : seen;
        close(file);
    }
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int outcome = real(clock, now);
    if (outcome == 0 && skew && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += *skew;
    return outcome;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec precise;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &precise) != 0) return -1;
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *seen) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (seen) *seen = now.tv_sec;
    return now.tv_sec;
}
