/*
 * Records how much of each file is certainly on the disk. Preloaded into a server.
 *
 * QUORLOCK_SYNCED_SIZES names a record. Each successful fsync and fdatasync of a regular file adds
 * a line: the file's inode, its birth in nanoseconds since 1970 (0 where the file system does not
 * know it), and its size when the call began. A file keeps its inode when it is renamed, and the
 * birth tells it from a later file with that inode.
 *
 * The line is written before the call returns, so the record contains each sync before the server
 * can answer after it.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static int record = -1;

static void give_up(const char *doing)
{
    dprintf(STDERR_FILENO, "synced_sizes: %s: %m\n", doing);
    _exit(127);
}

__attribute__((constructor)) static void open_the_record(void)
{
    const char *path = getenv("QUORLOCK_SYNCED_SIZES");
    if (path == NULL)
        return;
    record = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
    if (record < 0)
        give_up(path);
}

static int sync_and_record(long call, int fd)
{
    struct statx file;
    /* Read before the call: bytes that are written during the call may or may not be synced. */
    int known = record >= 0 &&
                statx(fd, "", AT_EMPTY_PATH, STATX_TYPE | STATX_INO | STATX_SIZE | STATX_BTIME, &file) == 0 &&
                S_ISREG(file.stx_mode);
    int failed = (int)syscall(call, fd);
    if (failed || !known)
        return failed;

    int64_t birth_ns = 0;
    if (file.stx_mask & STATX_BTIME)
        birth_ns = file.stx_btime.tv_sec * INT64_C(1000000000) + file.stx_btime.tv_nsec;
    char line[80];
    int length = snprintf(line, sizeof line, "%" PRIu64 " %" PRId64 " %" PRIu64 "\n", (uint64_t)file.stx_ino, birth_ns,
                          (uint64_t)file.stx_size);
    /* One write, so that the lines of several threads do not mix. */
    if (write(record, line, (size_t)length) != length)
        give_up("a line cannot be written");
    return 0;
}

int fsync(int fd)
{
    return sync_and_record(SYS_fsync, fd);
}

int fdatasync(int fd)
{
    return sync_and_record(SYS_fdatasync, fd);
}
