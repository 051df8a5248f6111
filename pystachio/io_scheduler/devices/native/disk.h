/* Moves chunks between files and memory on threads of its own, which know nothing of Python and wait for none of its
 * threads. The whole interface of the library: plain C, called through ctypes.
 *
 * A disk is a queue and its threads, a file its descriptors. Chunks are numbered by the caller, who keeps their memory
 * and their file until their end was taken with `pystachio_disk_ended`.
 */
#ifndef PYSTACHIO_DISK_H
#define PYSTACHIO_DISK_H

#include <stdint.h>

#define PS_EXPORT __attribute__((visibility("default")))

/* Changes with every change of a structure or function below; the loader refuses any other version. */
#define PS_DISK_INTERFACE_VERSION 2

/* What is asked of a chunk, and what became of it (ps_end.way). */
enum {
    PS_BUFFERED = 0, /* by way of the page cache */
    PS_DIRECT = 1,   /* around it, where file, memory and system can */
    PS_SPARING = 2,  /* around it unless half of the bytes are there already, or the system does not tell */
};

/* In ps_end.error beside the system's numbers: nobody wanted the chunk any more before it began. */
#define PS_ABANDONED (-1)

typedef struct ps_disk ps_disk;
typedef struct ps_file ps_file;

typedef struct {
    int64_t number;
    int64_t transferred; /* bytes, also before an error */
    double seconds;      /* from the start of the work, the file's opening included */
    int32_t error;       /* errno, PS_ABANDONED, or 0; a file that ended early is no error here */
    int32_t way;         /* PS_BUFFERED or PS_DIRECT; of several files, PS_DIRECT only if all were read so */
} ps_end;

PS_EXPORT int32_t pystachio_disk_interface_version(void);

/* A queue without threads, NULL without memory. There is one more than take chunks, up to `most_threads`.
 * `wake`, an event descriptor, is written to when there are ends and their taker has taken all there were before. */
PS_EXPORT ps_disk *pystachio_disk_open(int32_t most_threads, int32_t writes, int32_t wake);

/* Nothing may be under way. Waits for the threads. */
PS_EXPORT void pystachio_disk_close(ps_disk *disk);

/* A file that is opened with its first chunk; NULL without memory. */
PS_EXPORT ps_file *pystachio_disk_file(const char *path, int32_t direct);

/* The first `lengths[i]` bytes of each of `count` files, one after the other, to be read as if they were one; NULL
 * without memory. `paths` follow upon each other, each with its zero byte. */
PS_EXPORT ps_file *pystachio_disk_series(const char *paths, const int64_t *lengths, int32_t count, int32_t direct);

/* No chunk of the file is under way. A thread closes its descriptors, since that can wait for a server; the caller does
 * when `disk` is NULL, as it is closed. */
PS_EXPORT void pystachio_disk_close_file(ps_disk *disk, ps_file *file);

/* Queue a chunk; errno when there is no memory for it, or no thread at all, and then nothing was queued. A read may end
 * early, but not before `required` bytes. */
PS_EXPORT int32_t pystachio_disk_start(ps_disk *disk, ps_file *file, int64_t number, int64_t offset, void *bytes,
                                       int64_t length, int64_t required, int32_t way);

/* End the chunk now if it has not begun. */
PS_EXPORT void pystachio_disk_abandon(ps_disk *disk, int64_t number);

/* Take up to `most` ends; how many. */
PS_EXPORT int64_t pystachio_disk_ended(ps_disk *disk, ps_end *ends, int64_t most);

/* What is in a folder: of each file that is no link its size, the time of its change in nanoseconds and its name, as
 * text with spaces between, each with a zero byte behind it. What has gone meanwhile is left out. The bytes that this
 * takes, of which as many whole files as go into `room` are in `out`; -errno when the folder cannot be read. */
PS_EXPORT int64_t pystachio_disk_list(const char *folder, char *out, int64_t room);

#endif
