/*
 * Loaded into the Python processes of a program that is being debugged (LD_PRELOAD); compiled in the folder of the
 * debug session. It does three things, as its environment asks:
 *
 * - HALFLAP_GUARD=end|start: memory with an alignment, which is what tensors of torch on the CPU are made of, gets
 *   pages of its own, against their end or their beginning, between pages that nobody may touch. Freed memory becomes
 *   inaccessible and is never given again. New memory is filled: with bytes that are no number in any floating type
 *   against the end, with bytes that are a small number in each against the beginning. What is bad in the one run and
 *   good in the other was never written.
 * - HALFLAP_OUT, HALFLAP_ERR: where several ranks write to these files at once, each gets files of its own.
 * - Lines that are printed are written at once, so that a crash loses none.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <ucontext.h>
#include <unistd.h>

#define ROOM ((size_t)4 << 40)
#define NO_NUMBER 0xff
#define A_NUMBER 0x3c
/* How far from an address its block is looked for, in pages. */
#define NEAR ((size_t)1 << 20)
/* Each block splits a mapping in two, of which a process may have some 65,000. */
#define MOST_BLOCKS 20000

extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);
extern void *__libc_realloc(void *, size_t);

enum state { NEVER = 0, LIVE = 1, FREED = 2 };

struct block {
    unsigned char *start;
    size_t size;
    size_t pages;
    enum state state;
};

static enum { OFF, END, START } mode = OFF;
static unsigned char *room;
static struct block *blocks; /* by the number of the first page */
static size_t page;
static _Atomic size_t used;
static _Atomic size_t live;
static void (*next_free)(void *);
static void *(*next_realloc)(void *, size_t);
static int (*next_sigaction)(int, const struct sigaction *, struct sigaction *);
static struct sigaction theirs;
static pid_t owner;

static int is_ours(const void *at) {
    return room && (const unsigned char *)at >= room && (const unsigned char *)at < room + ROOM;
}

/* A block starts with its page, or ends with its last one: no byte lies between it and the page that is closed. */
static void *guarded(size_t size) {
    size_t pages = (size + page - 1) / page;
    size_t first = atomic_fetch_add(&used, pages + 1);
    if ((first + pages + 1) * page > ROOM || atomic_load(&live) > MOST_BLOCKS) return NULL;
    unsigned char *base = room + first * page;
    if (mprotect(base, pages * page, PROT_READ | PROT_WRITE) != 0) return NULL;
    memset(base, mode == END ? NO_NUMBER : A_NUMBER, pages * page);
    unsigned char *start = mode == END ? base + pages * page - size : base;
    blocks[first] = (struct block){start, size, pages, LIVE};
    atomic_fetch_add(&live, 1);
    return start;
}

static struct block *block_of(const void *at) {
    return &blocks[((const unsigned char *)at - room) / page];
}

static void release(void *at) {
    struct block *block = block_of(at);
    if (block->state != LIVE || block->start != at) {
        static const char text[] = "halflap-guard: kind=bad-free\n";
        (void)!write(2, text, sizeof text - 1);
        abort();
    }
    unsigned char *base = room + (size_t)(block - blocks) * page;
    block->state = FREED;
    madvise(base, block->pages * page, MADV_DONTNEED);
    mprotect(base, block->pages * page, PROT_NONE);
    atomic_fetch_sub(&live, 1);
}

static void *aligned(size_t alignment, size_t size) {
    if (mode != OFF && room && size > 0 && alignment <= page) {
        void *at = guarded(size);
        if (at) return at;
    }
    return __libc_memalign(alignment, size);
}

int posix_memalign(void **to, size_t alignment, size_t size) {
    void *at = aligned(alignment, size);
    if (!at && size > 0) return ENOMEM;
    *to = at;
    return 0;
}

void *aligned_alloc(size_t alignment, size_t size) { return aligned(alignment, size); }
void *memalign(size_t alignment, size_t size) { return aligned(alignment, size); }

void free(void *at) {
    if (is_ours(at)) {
        release(at);
    } else if (next_free) {
        next_free(at);
    } else {
        __libc_free(at);
    }
}

void *realloc(void *at, size_t size) {
    if (!is_ours(at)) return next_realloc ? next_realloc(at, size) : __libc_realloc(at, size);
    struct block *block = block_of(at);
    void *moved = malloc(size);
    if (moved) {
        memcpy(moved, at, block->size < size ? block->size : size);
        release(at);
    }
    return moved;
}

size_t malloc_usable_size(void *at) {
    if (is_ours(at)) return block_of(at)->size;
    size_t (*next)(void *) = (size_t(*)(void *))dlsym(RTLD_NEXT, "malloc_usable_size");
    return next ? next(at) : 0;
}

static char *put(char *to, const char *text) {
    while (*text) *to++ = *text++;
    return to;
}

static char *put_number(char *to, size_t number) {
    char digits[24];
    int count = 0;
    do {
        digits[count++] = (char)('0' + number % 10);
        number /= 10;
    } while (number);
    while (count) *to++ = digits[--count];
    return to;
}

static void tell(const char *kind, size_t distance, size_t size, const char *access) {
    char line[200], *end = line;
    end = put(end, "halflap-guard: kind=");
    end = put(end, kind);
    end = put(end, " distance=");
    end = put_number(end, distance);
    end = put(end, " size=");
    end = put_number(end, size);
    end = put(end, " access=");
    end = put(end, access);
    *end++ = '\n';
    (void)!write(2, line, (size_t)(end - line));
}

static const char *access_of(void *context) {
#if defined(__x86_64__)
    return ((ucontext_t *)context)->uc_mcontext.gregs[REG_ERR] & 2 ? "write" : "read";
#else
    (void)context;
    return "access";
#endif
}

/* Whose memory an address is nearest to. */
static void describe(unsigned char *at, void *context) {
    if (!is_ours(at)) return;
    size_t here = (size_t)(at - room) / page;
    const char *access = access_of(context);
    struct block *before = NULL, *after = NULL;
    for (size_t back = 0; back <= here && back < NEAR && !before; ++back)
        if (blocks[here - back].state != NEVER) before = &blocks[here - back];
    size_t end = atomic_load(&used);
    for (size_t on = 1; here + on < end && on < NEAR && !after; ++on)
        if (blocks[here + on].state != NEVER) after = &blocks[here + on];
    if (before && before->state == FREED && at < before->start + before->pages * page) {
        tell("after-free", (size_t)(at - before->start), before->size, access);
        return;
    }
    size_t past = before ? (size_t)(at - (before->start + before->size)) : SIZE_MAX;
    size_t short_of = after ? (size_t)(after->start - at) : SIZE_MAX;
    if (before && at < before->start) {
        tell("before-start", (size_t)(before->start - at), before->size, access);
    } else if (past <= short_of && before) {
        tell("after-end", past, before->size, access);
    } else if (after) {
        tell("before-start", short_of, after->size, access);
    }
}

static void on_fault(int number, siginfo_t *info, void *context) {
    describe(info->si_addr, context);
    struct sigaction next = theirs;
    if (next.sa_flags & SA_SIGINFO) {
        next.sa_sigaction(number, info, context);
    } else if (next.sa_handler != SIG_DFL && next.sa_handler != SIG_IGN) {
        next.sa_handler(number);
    } else {
        struct sigaction plain = {.sa_handler = SIG_DFL};
        next_sigaction(number, &plain, NULL);
    }
}

static void watch(void) {
    struct sigaction ours = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK};
    next_sigaction(SIGSEGV, &ours, NULL);
}

/* Python's own handler comes after ours, whenever it is set. */
int sigaction(int number, const struct sigaction *act, struct sigaction *old) {
    if (!next_sigaction)
        next_sigaction = (int (*)(int, const struct sigaction *, struct sigaction *))dlsym(RTLD_NEXT, "sigaction");
    /* A child of vfork has our memory and its own handlers. */
    if (number != SIGSEGV || mode == OFF || getpid() != owner) return next_sigaction(number, act, old);
    if (old) *old = theirs;
    if (act) {
        theirs = *act;
        int is_default = !(act->sa_flags & SA_SIGINFO) && act->sa_handler == SIG_DFL;
        if (is_default) return next_sigaction(number, act, NULL);
        watch();
    }
    return 0;
}

static const char *rank(void) {
    static const char *const names[] = {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"};
    for (size_t index = 0; index < sizeof names / sizeof *names; ++index)
        if (getenv(names[index])) return getenv(names[index]);
    return NULL;
}

static void redirect(int descriptor, const char *path) {
    struct stat shared, mine;
    const char *number = rank();
    char own[4096];
    if (!path || !number || strlen(number) > 8 || strlen(path) > sizeof own - 32) return;
    if (stat(path, &shared) != 0 || fstat(descriptor, &mine) != 0) return;
    if (shared.st_ino != mine.st_ino || shared.st_dev != mine.st_dev) return;
    snprintf(own, sizeof own, "%s.rank_%s", path, number);
    int file = open(own, O_WRONLY | O_CREAT | O_APPEND, 0644);
    if (file < 0) return;
    dup2(file, descriptor);
    close(file);
}

__attribute__((constructor)) static void start(void) {
    /* Compilers and shells that the program starts are not what is being debugged. */
    if (strncmp(program_invocation_short_name, "python", 6) != 0) return;
    next_free = (void (*)(void *))dlsym(RTLD_NEXT, "free");
    next_realloc = (void *(*)(void *, size_t))dlsym(RTLD_NEXT, "realloc");
    if (!next_sigaction)
        next_sigaction = (int (*)(int, const struct sigaction *, struct sigaction *))dlsym(RTLD_NEXT, "sigaction");
    redirect(1, getenv("HALFLAP_OUT"));
    redirect(2, getenv("HALFLAP_ERR"));
    setvbuf(stdout, NULL, _IOLBF, 1 << 16);
    const char *asked = getenv("HALFLAP_GUARD");
    if (!asked || (strcmp(asked, "end") != 0 && strcmp(asked, "start") != 0)) return;
    page = (size_t)sysconf(_SC_PAGESIZE);
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *all = mmap(NULL, ROOM, PROT_NONE, flags, -1, 0);
    void *table = mmap(NULL, ROOM / page * sizeof(struct block), PROT_READ | PROT_WRITE, flags, -1, 0);
    if (all == MAP_FAILED || table == MAP_FAILED) {
        static const char text[] = "halflap-guard: kind=no-room\n";
        (void)!write(2, text, sizeof text - 1);
        return;
    }
    owner = getpid();
    room = all;
    blocks = table;
    atomic_store(&used, 1); /* the first page is closed */
    mode = strcmp(asked, "end") == 0 ? END : START;
    watch();
}
