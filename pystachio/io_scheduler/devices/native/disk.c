#define _GNU_SOURCE
#include "disk.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#if !defined(__linux__)
#error "direct reads, event descriptors and cachestat are Linux's"
#endif

#define ALIGNMENT 4096
#define STACK_BYTES (256 << 10)
#define PRIVATE_MODE 0600 /* what is spilled is as secret as what was read */

/* The same number on all architectures; since Linux 6.5. */
#define CACHESTAT 451

struct ps_file {
    pthread_mutex_t lock; /* over the descriptors and the users */
    int32_t direct;       /* what was asked for, and the file system has not refused */
    int buffered_descriptor;
    int direct_descriptor;
    int32_t users; /* of a file of a series: how many read it now, and whether it is closed when nobody does */
    int32_t closes_early;
    int32_t count; /* of the files of a series, which has no descriptor of its own */
    struct part {
        ps_file *file;
        int64_t length;
    } *parts;
    char path[];
};

/* A chunk, or with `number` -1 a file to close. */
typedef struct job {
    struct job *next;
    ps_file *file;
    uint8_t *bytes;
    int64_t offset, length, required;
    ps_end end;
} job;

typedef struct {
    job *first, *last;
} job_list;

struct ps_disk {
    pthread_mutex_t lock; /* over all that follows */
    pthread_cond_t changed;
    job_list waiting, ended;
    pthread_t *threads;
    int32_t threads_running, threads_idle, most_threads;
    int64_t waiting_jobs;
    int32_t writes, wake, is_woken, is_closing;
    int32_t is_waking;   /* an idle thread was signalled and does not run yet */
    int32_t is_starting; /* a thread is being started */
};

static void append(job_list *list, job *one) {
    one->next = NULL;
    if (list->last)
        list->last->next = one;
    else
        list->first = one;
    list->last = one;
}

static job *take_first(job_list *list) {
    job *one = list->first;
    if (one) {
        list->first = one->next;
        if (!list->first) list->last = NULL;
    }
    return one;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Not to block matters for a named pipe only: its open would wait for the other end, and moving its bytes is refused. A
 * file that is written is not emptied: it is opened anew whenever transfers come after a pause. */
static int open_file(const ps_file *file, int32_t writes, int flags) {
    int access = writes ? O_WRONLY | O_CREAT : O_RDONLY, descriptor;
    do
        descriptor = open(file->path, access | O_CLOEXEC | O_NONBLOCK | flags, PRIVATE_MODE);
    while (descriptor < 0 && errno == EINTR);
    return descriptor;
}

/* A descriptor, and in `way` which one; -1 with errno. */
static int descriptor_of(ps_file *file, int32_t writes, int32_t *way) {
    int descriptor = -1;
    pthread_mutex_lock(&file->lock);
    if (*way == PS_DIRECT && file->direct && file->direct_descriptor < 0) {
        file->direct_descriptor = open_file(file, writes, O_DIRECT);
        if (file->direct_descriptor < 0) {
            if (errno != EINVAL && errno != EOPNOTSUPP) goto done;
            file->direct = 0;
        }
    }
    if (*way == PS_DIRECT && file->direct) {
        descriptor = file->direct_descriptor;
        goto done;
    }
    *way = PS_BUFFERED;
    if (file->buffered_descriptor < 0) file->buffered_descriptor = open_file(file, writes, 0);
    descriptor = file->buffered_descriptor;
done:
    pthread_mutex_unlock(&file->lock);
    return descriptor;
}

static int is_aligned(int64_t offset, int64_t length) { return offset % ALIGNMENT == 0 && length % ALIGNMENT == 0; }

/* Whether at least half of the bytes are in the page cache, or nobody says. */
static int is_mostly_cached(int descriptor, int64_t offset, int64_t length) {
    struct {
        uint64_t offset, length;
    } range = {(uint64_t)offset, (uint64_t)length};
    struct {
        uint64_t cached, dirty, under_write_back, evicted, evicted_lately;
    } pages;
    if (syscall(CACHESTAT, descriptor, &range, &pages, 0) != 0) return 1;
    return 2 * (int64_t)pages.cached * sysconf(_SC_PAGESIZE) >= length;
}

static void move_in_file(const job *chunk, int32_t writes, ps_end *end) {
    ps_file *file = chunk->file;
    int32_t way = end->way;
    int64_t wanted = writes ? chunk->length : chunk->required;
    end->transferred = 0;
    end->error = 0;
    end->way = PS_BUFFERED;
    int direct = way != PS_BUFFERED && is_aligned(chunk->offset, chunk->length);
    if (direct && way == PS_SPARING) {
        int32_t found = PS_DIRECT;
        int descriptor = descriptor_of(file, writes, &found);
        if (descriptor < 0) {
            end->error = errno;
            return;
        }
        direct = found == PS_DIRECT && !is_mostly_cached(descriptor, chunk->offset, chunk->length);
    }
    while (end->transferred < wanted) {
        int64_t at = chunk->offset + end->transferred, left = chunk->length - end->transferred;
        direct = direct && is_aligned(at, left);
        end->way = direct ? PS_DIRECT : PS_BUFFERED;
        int descriptor = descriptor_of(file, writes, &end->way);
        struct iovec where = {chunk->bytes + end->transferred, (size_t)left};
        ssize_t count = -1;
        if (descriptor >= 0) count = writes ? pwritev(descriptor, &where, 1, at) : preadv(descriptor, &where, 1, at);
        if (count < 0) {
            if (errno == EINTR) continue;
            /* Some file systems take the flag and refuse the transfer; some memory is not aligned enough. */
            if (descriptor >= 0 && errno == EINVAL && end->way == PS_DIRECT) {
                direct = 0;
                continue;
            }
            end->error = errno;
            return;
        }
        if (count == 0) return;
        end->transferred += count;
    }
}

static void close_descriptors(ps_file *file) {
    if (file->buffered_descriptor >= 0) close(file->buffered_descriptor);
    if (file->direct_descriptor >= 0) close(file->direct_descriptor);
    file->buffered_descriptor = file->direct_descriptor = -1;
}

/* In a file of a series. Once it was read to its end it is closed whenever nobody reads it: no thread needs to be woken
 * for that later. It is opened again in the rare case that more of it is read. */
static void move_in_part(const job *piece, int32_t writes, ps_end *end, int is_last) {
    ps_file *file = piece->file;
    pthread_mutex_lock(&file->lock);
    file->users++;
    file->closes_early |= is_last;
    pthread_mutex_unlock(&file->lock);
    move_in_file(piece, writes, end);
    pthread_mutex_lock(&file->lock);
    if (--file->users == 0 && file->closes_early) close_descriptors(file);
    pthread_mutex_unlock(&file->lock);
}

/* The next piece of the chunk behind `done` bytes of it: what is in one file of the series, from the `part`th on, which
 * begins at `start` of the series. 0 when there is none. */
static int next_piece(const job *chunk, int64_t done, int32_t *part, int64_t *start, job *piece) {
    const ps_file *series = chunk->file;
    for (; *part < series->count && done < chunk->length; (*part)++) {
        int64_t offset = chunk->offset + done - *start, left = series->parts[*part].length - offset;
        if (left > 0) {
            int64_t length = left < chunk->length - done ? left : chunk->length - done;
            int64_t required = chunk->required - done;
            if (required < 0) required = 0;
            *piece = (job){.file = series->parts[*part].file, .bytes = chunk->bytes + done, .offset = offset};
            piece->length = length;
            piece->required = required < length ? required : length;
            return 1;
        }
        *start += series->parts[*part].length;
    }
    return 0;
}

/* One way for all of the chunk: by the page cache if much of any file is there. */
static int32_t way_of_series(const job *chunk, int32_t writes) {
    int64_t start = 0, done = 0;
    int32_t part = 0;
    for (job piece; next_piece(chunk, done, &part, &start, &piece); done += piece.length) {
        int32_t way = PS_DIRECT;
        int descriptor = is_aligned(piece.offset, piece.length) ? descriptor_of(piece.file, writes, &way) : -1;
        if (descriptor < 0 || way != PS_DIRECT || is_mostly_cached(descriptor, piece.offset, piece.length))
            return PS_BUFFERED;
    }
    return PS_DIRECT;
}

/* What of the chunk is in each file of the series. */
static void move_in_series(const job *chunk, int32_t writes, ps_end *end) {
    int64_t start = 0, done = 0;
    int32_t part = 0, way = end->way == PS_SPARING ? way_of_series(chunk, writes) : end->way;
    end->transferred = 0;
    end->error = 0;
    end->way = way;
    for (job piece; next_piece(chunk, done, &part, &start, &piece); done += piece.length) {
        int64_t left = chunk->file->parts[part].length - piece.offset;
        ps_end found = {.way = way};
        move_in_part(&piece, writes, &found, piece.length == left);
        end->transferred += found.transferred;
        if (found.way == PS_BUFFERED) end->way = PS_BUFFERED;
        end->error = found.error;
        if (found.error || found.transferred < piece.length) return;
    }
}

static void move(const job *chunk, int32_t writes, ps_end *end) {
    if (chunk->file->parts)
        move_in_series(chunk, writes, end);
    else
        move_in_file(chunk, writes, end);
}

static void close_file(ps_file *file) {
    for (int32_t i = 0; i < file->count; i++) close_file(file->parts[i].file);
    free(file->parts);
    close_descriptors(file);
    pthread_mutex_destroy(&file->lock);
    free(file);
}

/* One idle thread is woken at a time, and wakes the next one if there is work for it: to wake one takes as long as a
 * small read, and whoever queues chunks has others waiting for him. The lock is held. */
static void wake_thread(ps_disk *disk) {
    if (disk->waiting_jobs && disk->threads_idle && !disk->is_waking) {
        disk->is_waking = 1;
        pthread_cond_signal(&disk->changed);
    }
}

static int start_thread(ps_disk *disk);

/* 0, or errno, and then nothing was queued: there is no thread at all. The lock is held. */
static int queue(ps_disk *disk, job *one) {
    if (!disk->threads_running) {
        int error = start_thread(disk);
        if (error) return error;
    }
    append(&disk->waiting, one);
    disk->waiting_jobs++;
    wake_thread(disk);
    if (disk->waiting_jobs > disk->threads_idle) start_thread(disk);
    return 0;
}

/* Whether the taker of ends is to be told. The lock is held. */
static int end_chunk(ps_disk *disk, job *chunk) {
    int is_first = !disk->is_woken;
    append(&disk->ended, chunk);
    disk->is_woken = 1;
    return is_first;
}

/* Without the lock: the taker may run at once. */
static void tell(ps_disk *disk) {
    uint64_t one = 1;
    while (write(disk->wake, &one, sizeof one) < 0 && errno == EINTR) {
    }
}

static void *serve(void *argument) {
    ps_disk *disk = argument;
    pthread_setname_np(pthread_self(), "pystachio-disk");
    pthread_mutex_lock(&disk->lock);
    disk->threads_idle--;
    disk->is_waking = 0;
    for (;;) {
        job *one = take_first(&disk->waiting);
        if (!one) {
            if (disk->is_closing) break;
            disk->threads_idle++;
            pthread_cond_wait(&disk->changed, &disk->lock);
            disk->threads_idle--;
            disk->is_waking = 0;
            continue;
        }
        disk->waiting_jobs--;
        wake_thread(disk);
        /* One in reserve: whoever queues a chunk has others waiting for him, and starting a thread takes long. */
        if (!disk->threads_idle) start_thread(disk);
        pthread_mutex_unlock(&disk->lock);
        int is_close = one->end.number < 0, is_first = 0;
        if (is_close) {
            close_file(one->file);
            free(one);
        } else {
            double started = now();
            move(one, disk->writes, &one->end);
            one->end.seconds = now() - started;
        }
        pthread_mutex_lock(&disk->lock);
        if (!is_close) is_first = end_chunk(disk, one);
        if (is_first) {
            pthread_mutex_unlock(&disk->lock);
            tell(disk);
            pthread_mutex_lock(&disk->lock);
        }
    }
    pthread_mutex_unlock(&disk->lock);
    return NULL;
}

/* 0, or errno. It takes no signals: they are for the interpreter's threads. */
static int create_thread(ps_disk *disk, pthread_t *thread) {
    pthread_attr_t attributes;
    sigset_t all, before;
    int error = pthread_attr_init(&attributes);
    if (!error) {
        pthread_attr_setstacksize(&attributes, STACK_BYTES);
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        error = pthread_create(thread, &attributes, serve, disk);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        pthread_attr_destroy(&attributes);
    }
    return error;
}

/* One more thread if there may be one, idle until it runs, and more while too much waits. 0, or errno. The lock is held,
 * and let go meanwhile where others may do the work: they leave it to this one to start more. */
static int start_thread(ps_disk *disk) {
    int error = 0;
    if (disk->is_starting) return 0;
    disk->is_starting = 1;
    do {
        if (disk->is_closing || disk->threads_running == disk->most_threads) break;
        int is_first = !disk->threads_running;
        pthread_t *thread = &disk->threads[disk->threads_running];
        disk->threads_idle++;
        if (!is_first) pthread_mutex_unlock(&disk->lock);
        error = create_thread(disk, thread);
        if (!is_first) pthread_mutex_lock(&disk->lock);
        if (error) {
            /* It may have been counted on. */
            disk->threads_idle--;
            disk->is_waking = 0;
            wake_thread(disk);
        } else {
            disk->threads_running++;
        }
    } while (!error && disk->waiting_jobs > disk->threads_idle);
    disk->is_starting = 0;
    return error;
}

int32_t pystachio_disk_interface_version(void) { return PS_DISK_INTERFACE_VERSION; }

ps_disk *pystachio_disk_open(int32_t most_threads, int32_t writes, int32_t wake) {
    ps_disk *disk = calloc(1, sizeof *disk);
    if (!disk) return NULL;
    disk->threads = calloc((size_t)most_threads, sizeof *disk->threads);
    if (!disk->threads) {
        free(disk);
        return NULL;
    }
    pthread_mutex_init(&disk->lock, NULL);
    pthread_cond_init(&disk->changed, NULL);
    disk->most_threads = most_threads;
    disk->writes = writes;
    disk->wake = wake;
    return disk;
}

void pystachio_disk_close(ps_disk *disk) {
    pthread_mutex_lock(&disk->lock);
    disk->is_closing = 1;
    pthread_cond_broadcast(&disk->changed);
    /* Who starts another is joined before it. */
    for (int32_t thread = 0; thread < disk->threads_running; thread++) {
        pthread_mutex_unlock(&disk->lock);
        pthread_join(disk->threads[thread], NULL);
        pthread_mutex_lock(&disk->lock);
    }
    pthread_mutex_unlock(&disk->lock);
    for (job *one; (one = take_first(&disk->ended));) free(one);
    pthread_cond_destroy(&disk->changed);
    pthread_mutex_destroy(&disk->lock);
    free(disk->threads);
    free(disk);
}

ps_file *pystachio_disk_file(const char *path, int32_t direct) {
    size_t length = strlen(path) + 1;
    ps_file *file = malloc(sizeof *file + length);
    if (!file) return NULL;
    memcpy(file->path, path, length);
    pthread_mutex_init(&file->lock, NULL);
    file->direct = direct;
    file->buffered_descriptor = file->direct_descriptor = -1;
    file->users = file->closes_early = file->count = 0;
    file->parts = NULL;
    return file;
}

ps_file *pystachio_disk_series(const char *paths, const int64_t *lengths, int32_t count, int32_t direct) {
    ps_file *series = pystachio_disk_file("", direct);
    if (!series) return NULL;
    series->parts = calloc((size_t)count, sizeof *series->parts);
    for (int32_t i = 0; series->parts && i < count; i++) {
        ps_file *file = pystachio_disk_file(paths, direct);
        if (!file) break;
        series->parts[series->count++] = (struct part){file, lengths[i]};
        paths += strlen(paths) + 1;
    }
    if (series->parts && series->count == count) return series;
    close_file(series);
    return NULL;
}

/* Whether it, or a file of the series, has a descriptor. */
static int is_open(const ps_file *file) {
    if (file->buffered_descriptor >= 0 || file->direct_descriptor >= 0) return 1;
    for (int32_t i = 0; i < file->count; i++)
        if (is_open(file->parts[i].file)) return 1;
    return 0;
}

void pystachio_disk_close_file(ps_disk *disk, ps_file *file) {
    job *one = NULL;
    if (disk && is_open(file)) one = calloc(1, sizeof *one);
    if (!one) {
        close_file(file);
        return;
    }
    one->file = file;
    one->end.number = -1;
    pthread_mutex_lock(&disk->lock);
    int error = queue(disk, one);
    pthread_mutex_unlock(&disk->lock);
    if (error) {
        close_file(file);
        free(one);
    }
}

int32_t pystachio_disk_start(ps_disk *disk, ps_file *file, int64_t number, int64_t offset, void *bytes, int64_t length,
                             int64_t required, int32_t way) {
    int error = 0;
    job *chunk = malloc(sizeof *chunk);
    if (!chunk) return ENOMEM;
    *chunk = (job){.file = file, .bytes = bytes, .offset = offset, .length = length, .required = required};
    chunk->end = (ps_end){.number = number, .way = way};
    pthread_mutex_lock(&disk->lock);
    error = queue(disk, chunk);
    pthread_mutex_unlock(&disk->lock);
    if (error) free(chunk);
    return error;
}

void pystachio_disk_abandon(ps_disk *disk, int64_t number) {
    int is_first = 0;
    pthread_mutex_lock(&disk->lock);
    job_list kept = {NULL, NULL};
    for (job *one; (one = take_first(&disk->waiting));) {
        if (one->end.number == number) {
            one->end.error = PS_ABANDONED;
            one->end.way = PS_BUFFERED;
            disk->waiting_jobs--;
            is_first |= end_chunk(disk, one);
        } else {
            append(&kept, one);
        }
    }
    disk->waiting = kept;
    pthread_mutex_unlock(&disk->lock);
    if (is_first) tell(disk);
}

int64_t pystachio_disk_ended(ps_disk *disk, ps_end *ends, int64_t most) {
    int64_t count = 0;
    pthread_mutex_lock(&disk->lock);
    for (job *one; count < most && (one = take_first(&disk->ended));) {
        ends[count++] = one->end;
        free(one);
    }
    disk->is_woken = disk->ended.first != NULL;
    pthread_mutex_unlock(&disk->lock);
    return count;
}
