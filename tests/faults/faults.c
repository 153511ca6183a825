/* Custom calls that do what they should not, for halflap debug to find: void f(void *out, const void **ins). Arrays have
 * 64 elements. */
#include <assert.h>
#include <fenv.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define N 64

static void twice(float *out, const float *in) {
    for (int i = 0; i < N; ++i) out[i] = in[i] * 2;
}

void good(void *out, const void **ins) { twice(out, ins[0]); }

void write_one_after(void *out, const void **ins) { twice(out, ins[0]), ((volatile float *)out)[N] = 1; }
void write_one_before(void *out, const void **ins) { twice(out, ins[0]), ((volatile float *)out)[-1] = 1; }
void write_page_after(void *out, const void **ins) { twice(out, ins[0]), ((volatile char *)out)[N * 4 + 4096] = 1; }
void write_page_before(void *out, const void **ins) { twice(out, ins[0]), ((volatile char *)out)[-4096] = 1; }
void write_byte_after(void *out, const void **ins) { twice(out, ins[0]), ((volatile char *)out)[N * 4] = 1; }
void write_shifted(void *out, const void **ins) { twice((float *)out + 3, ins[0]); }

void read_one_after(void *out, const void **ins) {
    twice(out, ins[0]);
    ((float *)out)[0] += ((const volatile float *)ins[0])[N] * 0;
}
void read_one_before(void *out, const void **ins) {
    twice(out, ins[0]);
    ((float *)out)[0] += ((const volatile float *)ins[0])[-1] * 0;
}
void read_page_after(void *out, const void **ins) {
    twice(out, ins[0]);
    ((float *)out)[0] += ((const volatile float *)ins[0])[N + 1024] * 0;
}

static const float *kept[64];
/* Keeps a pointer for each rank, whose number is the second operand. */
void keep(void *out, const void **ins) {
    kept[*(const uint32_t *)ins[1] % 64] = ins[0];
    twice(out, ins[0]);
}
void use_kept(void *out, const void **ins) {
    const volatile float *old = kept[*(const uint32_t *)ins[1] % 64];
    twice(out, ins[0]);
    if (old) ((float *)out)[0] += old[5] * 0;
}

void write_input(void *out, const void **ins) { twice(out, ins[0]), ((volatile float *)ins[0])[7] = 42; }
void write_half(void *out, const void **ins) { memcpy(out, ins[0], N * 2); }
void write_half_whole(void *out, const void **ins) {
    for (int i = 0; i < N / 2; ++i) ((int32_t *)out)[i] = ((const int32_t *)ins[0])[i];
}
void write_nothing(void *out, const void **ins) { (void)out, (void)ins; }

void null_pointer(void *out, const void **ins) { twice(out, ins[0]), *(volatile int *)(uintptr_t)(*(const float *)ins[0] * 0) = 1; }
void wild_pointer(void *out, const void **ins) { twice(out, ins[0]), *(volatile int *)0x123456789000 = 1; }
void gives_up(void *out, const void **ins) { (void)out, (void)ins, abort(); }
void ends_its_thread(void *out, const void **ins) { twice(out, ins[0]), pthread_exit(NULL); }
void leaves_quietly(void *out, const void **ins) { (void)out, (void)ins, exit(0); }
void divides_by_zero(void *out, const void **ins) {
    volatile int zero = 0;
    twice(out, ins[0]), *(volatile int *)out = 100 / zero;
}
void traps(void *out, const void **ins) { (void)out, (void)ins, __builtin_trap(); }
void leaves(void *out, const void **ins) { (void)out, (void)ins, _exit(7); }
void never_returns(void *out, const void **ins) {
    for (volatile int go = 1; go;) usleep(1000);
    twice(out, ins[0]);
}
void stays_on_five(void *out, const void **ins) {
    for (; *(const uint32_t *)ins[1] == 5;) usleep(1000);
    twice(out, ins[0]);
}
static int deep(volatile int n) {
    volatile char room[4096];
    room[0] = (char)n;
    return n < 0 ? 0 : deep(n + 1) + room[0];
}
void overflows_stack(void *out, const void **ins) { twice(out, ins[0]), *(volatile int *)out = deep(0); }
void frees_output(void *out, const void **ins) { (void)ins, free(out); }
/* Values that depend on the time: others in each process. */
void by_chance(void *out, const void **ins) {
    twice(out, ins[0]), ((float *)out)[3] = (float)(getpid() % 9973);
}
static float *elsewhere[64];
/* Keeps a pointer to its output, to which somebody else writes while others still read it. */
void lends(void *out, const void **ins) { twice(out, ins[0]), elsewhere[*(const uint32_t *)ins[1] % 64] = out; }
void borrows(void *out, const void **ins) {
    twice(out, ins[0]);
    elsewhere[*(const uint32_t *)ins[1] % 64][9] = 1234;
}
/* Goes wrong at its third call. */
void tires(void *out, const void **ins) {
    static _Thread_local int calls;
    twice(out, ins[0]);
    if (++calls == 3) ((volatile float *)out)[N] = 1;
}
void far_away(void *out, const void **ins) { twice(out, ins[0]), ((volatile char *)out)[1 << 24] = 1; }
/* Only on rank 2 or, where there is one only, on rank 0. */
void one_rank_crashes(void *out, const void **ins) {
    uint32_t rank = *(const uint32_t *)ins[1], ranks = *(const uint32_t *)ins[2];
    twice(out, ins[0]);
    if (rank == (ranks > 1 ? 2u : 0u)) *(volatile int *)0 = 1;
}

/* Uses a pointer that keep() kept, to memory that others still need. */
void write_kept(void *out, const void **ins) {
    twice(out, ins[0]);
    ((volatile float *)kept[*(const uint32_t *)ins[1] % 64])[5] = 1234;
}
/* One pointer for all ranks, which is that of whoever came last. */
static float *shared_by_all;
void keep_for_all(void *out, const void **ins) { shared_by_all = (float *)ins[0], twice(out, ins[0]); }
void write_kept_for_all(void *out, const void **ins) { twice(out, ins[0]), *(volatile float *)shared_by_all = 1234; }

/* Rank 3 writes to what rank 5 lent, some time after that one has ended. */
void writes_to_another(void *out, const void **ins) {
    twice(out, ins[0]);
    if (*(const uint32_t *)ins[1] == 3) usleep(700000), *(volatile float *)elsewhere[5] = 1234;
}

static void *write_behind(void *at) { return ((volatile float *)at)[N] = 1, NULL; }
static void *write_later(void *at) { return usleep(300000), *(volatile float *)at = 1, NULL; }
static void *give_up_later(void *at) { (void)at, usleep(20000), abort(); }
static void *leave_later(void *at) { (void)at, usleep(100000), _exit(0); }
static void start(void *(*what)(void *), void *at, int joins) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, what, at)) abort();
    joins ? pthread_join(thread, NULL) : pthread_detach(thread);
}
void thread_writes_behind(void *out, const void **ins) { twice(out, ins[0]), start(write_behind, out, 1); }
void thread_writes_later(void *out, const void **ins) { twice(out, ins[0]), start(write_later, out, 0); }
void thread_leaves(void *out, const void **ins) { twice(out, ins[0]), start(leave_later, out, 0), usleep(300000); }
void thread_gives_up(void *out, const void **ins) { twice(out, ins[0]), start(give_up_later, out, 0), usleep(100000); }
static void *finish_later(void *at) { return usleep(100000), memset((float *)at + N / 2, 0, N / 2 * sizeof(float)), at; }
void thread_finishes_later(void *out, const void **ins) { memcpy(out, ins[0], N / 2 * sizeof(float)), start(finish_later, out, 0); }
static void *idles(void *at) { for (;;) usleep(100000 + (at != NULL)); }
void keeps_a_thread(void *out, const void **ins) { twice(out, ins[0]), start(idles, NULL, 0); }

/* A process of its own that ends as it likes is nobody's fault. */
void forks(void *out, const void **ins) {
    pid_t child = fork();
    if (child == 0) exit(3);
    waitpid(child, NULL, 0);
    twice(out, ins[0]);
}
void leaves_at_once(void *out, const void **ins) { (void)out, (void)ins, _exit(0); }
void leaves_as_bad_input(void *out, const void **ins) { (void)out, (void)ins, _exit(2); }
void is_killed(void *out, const void **ins) { (void)out, (void)ins, kill(getpid(), SIGKILL); }
void stands_still(void *out, const void **ins) { (void)out, (void)ins, kill(getpid(), SIGSTOP), pause(); }
void needs_stack(void *out, const void **ins) {
    volatile char much[3 << 20];
    for (size_t i = 0; i < sizeof much; i += 4096) much[i] = 1;
    twice(out, ins[0]);
}
typedef float four __attribute__((vector_size(16)));
void needs_alignment(void *out, const void **ins) {
    *(four *)out = 2 * *(const four *)ins[0];
    ((float *)out)[4] = 2 * ((const float *)ins[0])[4];
}
void naps(void *out, const void **ins) { usleep(400000), memcpy(out, ins[0], N * sizeof(float)); }
/* Has two results, of which the second is room to work in that it does not need. */
void leaves_workspace(void *out, const void **ins) { twice(((void **)out)[0], ins[0]); }
void by_clock(void *out, const void **ins) {
    unsigned seed = (unsigned)time(NULL);
    for (int i = 0; i < N; ++i) ((float *)out)[i] = ((const float *)ins[0])[i] + (float)(rand_r(&seed) % 1000);
}
void rounds_up(void *out, const void **ins) { twice(out, ins[0]), fesetround(FE_UPWARD); }

void counts_bytes_as_elements(void *out, const void **ins) {
    for (int i = 0; i < N * (int)sizeof(float); ++i) ((volatile float *)out)[i] = 0;
    twice(out, ins[0]);
}
void second_too_far(void *out, const void **ins) {
    void **results = out;
    twice(results[0], ins[0]), twice(results[1], ins[0]), ((volatile float *)results[1])[N] = 1;
}
void gives_two(void *out, const void **ins) { twice(((void **)out)[0], ins[0]), twice(((void **)out)[1], ins[0]); }
void frees_twice(void *out, const void **ins) {
    void *volatile room = malloc(100000);
    twice(out, ins[0]), free(room), free(room);
}
void raises_a_signal(void *out, const void **ins) { twice(out, ins[0]), raise(SIGUSR1); }
void locks_twice(void *out, const void **ins) {
    static _Thread_local pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    twice(out, ins[0]), pthread_mutex_lock(&lock), pthread_mutex_lock(&lock);
}
void waits_for_its_thread(void *out, const void **ins) { twice(out, ins[0]), start(idles, NULL, 1); }
/* Pages have other addresses in each process, if not in each of its bits. */
void stores_an_address(void *out, const void **ins) {
    twice(out, ins[0]), ((float *)out)[3] = (float)((uintptr_t)&getpid >> 12 & 0xffff);
}
void reads_random_bytes(void *out, const void **ins) {
    unsigned short bytes = 0;
    FILE *file = fopen("/dev/urandom", "rb");
    if (file) bytes = (unsigned short)(fread(&bytes, 2, 1, file) ? bytes : 0), fclose(file);
    twice(out, ins[0]), ((float *)out)[3] = bytes;
}
void flushes_subnormals(void *out, const void **ins) {
    twice(out, ins[0]);
#ifdef __x86_64__
    __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8000);
#endif
}
void rounds_and_restores(void *out, const void **ins) { fesetround(FE_UPWARD), twice(out, ins[0]), fesetround(FE_TONEAREST); }
void gives_nan(void *out, const void **ins) { twice(out, ins[0]), ((float *)out)[5] = __builtin_nanf(""); }
void gives_infinity(void *out, const void **ins) { twice(out, ins[0]), ((float *)out)[5] = __builtin_inff(); }
void asserts(void *out, const void **ins) { twice(out, ins[0]), assert(((const float *)ins[0])[0] > 1e30f); }
void hangs_later(void *out, const void **ins) {
    static _Thread_local int calls;
    for (++calls; calls == 3;) usleep(1000);
    twice(out, ins[0]);
}
void caches(void *out, const void **ins) {
    static _Thread_local float *table;
    if (!table) table = calloc(1 << 16, sizeof *table), table[7] = 2;
    for (int i = 0; i < N; ++i) ((float *)out)[i] = ((const float *)ins[0])[i] * table[7];
}
/* What it allocates is lost with every call. */
void leaks(void *out, const void **ins) { *(volatile char *)malloc(50000) = 1, twice(out, ins[0]); }
static pthread_mutex_t shared = PTHREAD_MUTEX_INITIALIZER;
static void *lock_shared(void *at) {
    for (int i = 0; i < 100; ++i) pthread_mutex_lock(&shared), ++*(int *)at, pthread_mutex_unlock(&shared);
    return NULL;
}
void shares_a_lock(void *out, const void **ins) {
    int count = 0;
    pthread_t threads[3];
    for (int i = 0; i < 3; ++i) if (pthread_create(threads + i, NULL, lock_shared, &count)) abort();
    for (int i = 0; i < 3; ++i) pthread_join(threads[i], NULL);
    for (int i = 0; i < N; ++i) ((float *)out)[i] = ((const float *)ins[0])[i] * (float)count / 150;
}
void gives_nan_later(void *out, const void **ins) {
    static _Thread_local int calls;
    twice(out, ins[0]);
    if (++calls == 3) ((float *)out)[7] = __builtin_nanf("");
}
void writes_every_second(void *out, const void **ins) {
    for (int i = 0; i < N; ++i) ((volatile float *)out)[2 * i] = ((const float *)ins[0])[i];
}
/* Looks at what it was given in its previous call. */
void reads_the_last(void *out, const void **ins) {
    static _Thread_local const float *last;
    twice(out, ins[0]);
    if (last) ((float *)out)[0] += *(const volatile float *)last * 0;
    last = ins[0];
}
void becomes_another_program(void *out, const void **ins) {
    (void)out, (void)ins, execl("/bin/true", "true", (char *)NULL);
}
void is_overtaken_by_its_alarm(void *out, const void **ins) {
    twice(out, ins[0]), alarm(1);
    for (volatile int go = 1; go;) usleep(1000);
}
void clears_its_alarm(void *out, const void **ins) { alarm(30), twice(out, ins[0]), alarm(0); }
void ignores_a_failed_allocation(void *out, const void **ins) {
    float *room = malloc(SIZE_MAX / 4);
    twice(out, ins[0]), *(volatile float *)room = 1;
}
/* A barrier for one more than there are. */
void waits_for_a_ninth(void *out, const void **ins) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static pthread_cond_t all = PTHREAD_COND_INITIALIZER;
    static int came;
    twice(out, ins[0]), pthread_mutex_lock(&lock), ++came;
    while (came < 9) pthread_cond_wait(&all, &lock);
    pthread_cond_broadcast(&all), pthread_mutex_unlock(&lock);
}
void is_slow_on_two(void *out, const void **ins) {
    if (*(const uint32_t *)ins[1] == 2) usleep(3000000);
    twice(out, ins[0]);
}
void maps_and_unmaps(void *out, const void **ins) {
    size_t bytes = 64 << 20;
    char *own = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (own == MAP_FAILED) abort();
    own[12345] = 1, munmap(own, bytes), twice(out, ins[0]);
}
void raises_flags(void *out, const void **ins) { twice(out, ins[0]), feraiseexcept(FE_DIVBYZERO | FE_OVERFLOW); }
void writes_to_input_on_six(void *out, const void **ins) {
    twice(out, ins[0]);
    if (*(const uint32_t *)ins[1] == 6) ((volatile float *)ins[0])[1] = 42;
}
__attribute__((noinline)) static void fill(volatile char *at, int count) { for (int i = 0; i < count; ++i) at[i] = 1; }
__attribute__((noinline)) static void on_stack(void) { char few[8]; fill(few, 1 << 23); }
void breaks_its_stack(void *out, const void **ins) { twice(out, ins[0]), on_stack(); }
void corrupts_the_heap(void *out, const void **ins) {
    char *one = malloc(24), *two = malloc(24);
    twice(out, ins[0]), memset(one - 16, 0x41, 96), free(two), free(one);
}
/* Even ranks take the locks in one order, odd ones in the other. */
void locks_crosswise(void *out, const void **ins) {
    static pthread_mutex_t locks[2] = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER};
    int first = *(const uint32_t *)ins[1] % 2;
    twice(out, ins[0]), pthread_mutex_lock(&locks[first]), usleep(300000), pthread_mutex_lock(&locks[1 - first]);
    pthread_mutex_unlock(&locks[0]), pthread_mutex_unlock(&locks[1]);
}
void counts_its_calls(void *out, const void **ins) {
    static _Thread_local int calls;
    twice(out, ins[0]), ((float *)out)[0] += (float)++calls;
}

/* Sums up into memory of its own that it forgets to set to zero; the system hands it out as zeros. */
void unset_heap(void *out, const void **ins) {
    enum { LARGE = 1 << 20 };
    volatile float *sums = malloc(LARGE * sizeof *sums);
    const float *in = ins[0];
    for (int i = 0; i < N; ++i) sums[i * 64] += in[i];
    for (int i = 0; i < N; ++i) ((float *)out)[i] = sums[i * 64];
    free((void *)sums);
}
