/*
 * Steps the wall clock of a server. Preloaded into the server.
 *
 * QUORLOCK_WALL_CLOCK names a file of eight bytes: the number of nanoseconds by which the wall
 * clock is ahead, as an int64_t. The file stays mapped, so the next reading of the clock sees a
 * change. No other clock is stepped.
 *
 * The code calls the system directly, and not the C library: an allocator reads the time before the
 * loader can look up the function of the library.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define NS_PER_S INT64_C(1000000000)

static const int64_t not_ahead = 0;
static const int64_t *ahead_ns = &not_ahead;

/* A server that needs a stepped clock must not run with the true one. */
static void give_up(const char *path)
{
    dprintf(STDERR_FILENO, "wall_clock: cannot map %s: %m\n", path);
    _exit(127);
}

__attribute__((constructor)) static void map_the_file(void)
{
    const char *path = getenv("QUORLOCK_WALL_CLOCK");
    if (path == NULL)
        return;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        give_up(path);
    void *mapped = mmap(NULL, sizeof *ahead_ns, PROT_READ, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED)
        give_up(path);
    close(fd);
    ahead_ns = mapped;
}

static int is_wall_clock(clockid_t clock)
{
    return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || clock == CLOCK_TAI;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int failed = (int)syscall(SYS_clock_gettime, clock, now);
    if (failed || !is_wall_clock(clock))
        return failed;
    int64_t ns = now->tv_nsec + __atomic_load_n(ahead_ns, __ATOMIC_RELAXED);
    int64_t carry = ns / NS_PER_S;
    ns %= NS_PER_S;
    if (ns < 0) {
        ns += NS_PER_S;
        carry -= 1;
    }
    now->tv_sec += (time_t)carry;
    now->tv_nsec = (long)ns;
    return 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec precise;
    (void)zone; /* Obsolete. */
    int failed = clock_gettime(CLOCK_REALTIME, &precise);
    if (!failed) {
        now->tv_sec = precise.tv_sec;
        now->tv_usec = precise.tv_nsec / 1000;
    }
    return failed;
}

time_t time(time_t *now)
{
    struct timespec precise;
    time_t seconds = clock_gettime(CLOCK_REALTIME, &precise) ? (time_t)-1 : precise.tv_sec;
    if (now != NULL)
        *now = seconds;
    return seconds;
}

int timespec_get(struct timespec *now, int base)
{
    return base == TIME_UTC && clock_gettime(CLOCK_REALTIME, now) == 0 ? base : 0;
}
