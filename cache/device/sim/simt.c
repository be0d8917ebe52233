/* SPDX-License-Identifier: Apache-2.0
 *
 * Running a launch on the simulated device: block after block, with a fiber for each thread of a
 * block. A lane runs until a ballot, shuffle or barrier. There the next lane of its warp continues,
 * and the last lane to arrive passes without a switch. If lanes arrive at different calls, or
 * return while others wait, the process ends with a message: a GPU would hang or compute nonsense.
 *
 * For ThreadSanitizer each fiber is a thread. The start and the end of a launch and the barriers
 * order memory. Ballots and shuffles do not, and blocks are not ordered with each other. A fiber
 * serves one block after another, which would order these blocks. So there are two sets of fibers
 * for alternating blocks, and within a set the assignment of fibers rotates.
 */
#include "cache/device/simt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/heap.h"
#include "base/poison.h"
#include "cache/device/sim/fiber.h"
#include "cache/device/sim/run.h"
#include "cache/device/sim/sanitize.h"

enum {
    THREADS_MAX = 1024, /* of a block, as on a GPU */
    WARPS_MAX = THREADS_MAX / HPS_WARP,
    ALL_LANES = -1,
    UNDEFINED_BYTE = 0xa5, /* initial contents of shared memory */
#if defined(__SANITIZE_ADDRESS__) || defined(HPS_TSAN)
    STACK_BYTES = 256 * 1024,
#else
    STACK_BYTES = 64 * 1024,
#endif
    ROTATION = 7, /* of threads among fibers, from block to block */
#if defined(HPS_TSAN)
    SETS = 2, /* of fibers */
#else
    SETS = 1,
#endif
#if defined(__SANITIZE_ADDRESS__)
    GUARD_BYTES = 64, /* after shared memory */
#else
    GUARD_BYTES = 0,
#endif
};

static const char *const call_names[] = {"ballot", "shuffle", "warp barrier", "block barrier"};

/* A call in a kernel's source. */
struct site {
    const char *file;
    int line;
    enum hps_simt_call call;
};

/* One cache line. */
struct lane {
    struct hps_simt_thread here; /* first: hps_simt_here points to it */
    uint32_t index;              /* in its warp */
    uint32_t launch;             /* the last one that it took part in */
    struct warp *warp;
    struct hps_simt *simt;
    struct hps_fiber *fiber;
};
_Static_assert(sizeof(struct lane) <= 64, "a lane is one line of the cache");

/* There are two sets of values: a lane may arrive at the next call while other lanes have not yet
 * read the result of the last one. */
struct warp {
    uint32_t present;  /* lanes that have not returned */
    uint32_t arrived;  /* lanes that wait at `site` */
    uint32_t blocked;  /* lanes that wait at a block barrier */
    uint32_t meetings; /* completed */
    struct site site;
    struct site barrier;
    struct hps_simt_meeting met[2];
    uint32_t index;
    struct lane *lanes[HPS_WARP];
};

/* New for each block. Under ThreadSanitizer it is kept until the launch has ended, because memory
 * reused by the next block would be reported as a race. */
struct block_memory {
    struct block_memory *next;
    uint64_t block_order[2]; /* addresses for the annotations of order */
    uint64_t warp_order[WARPS_MAX][2];
    uint8_t shared[] __attribute__((aligned(16)));
};

struct hps_simt {
    struct hps_fiber *stream; /* the thread's own */
    uint64_t random;
    uint32_t n_lanes[SETS]; /* fibers made so far */
    struct lane *lanes[SETS][THREADS_MAX];
    struct warp warps[WARPS_MAX];
    const struct hps_kernel *kernel; /* the running launch and its block */
    hps_sim_body body;               /* of the kernel */
    const void *args;
    uint32_t block;
    uint32_t set;
    uint32_t barriers; /* passed by all threads of the block */
    struct block_memory *memory;
    uint32_t launch; /* its number */
    uint64_t launch_order;
    uint64_t end_order;
};

_Thread_local const struct hps_simt_thread *hps_simt_here;

/* ---- errors that a GPU may not report -------------------------------------------------------- */

__attribute__((noreturn, cold, format(printf, 1, 2))) static void fail(const char *fmt, ...)
{
    const struct lane *lane = (const struct lane *)hps_simt_here;
    va_list args;
    va_start(args, fmt);
    if (lane != NULL) {
        fprintf(stderr, "hps: simulated device: kernel %s, block %u, warp %u, lane %u: ",
                lane->simt->kernel->name, lane->here.block, lane->warp->index, lane->index);
    }
    vfprintf(stderr, fmt, args);
    va_end(args);
    fputc('\n', stderr);
    abort();
}

__attribute__((noreturn, cold)) static void fail_diverged(uint32_t waiting, const struct site *site,
                                                          uint32_t others,
                                                          const struct site *elsewhere)
{
    if (elsewhere != NULL) {
        fail("diverged: lanes %08x wait at %s:%d (%s), lanes %08x are at %s:%d (%s)", waiting,
             site->file, site->line, call_names[site->call], others, elsewhere->file,
             elsewhere->line, call_names[elsewhere->call]);
    }
    fail("diverged: lanes %08x wait at %s:%d (%s), lanes %08x have returned", waiting, site->file,
         site->line, call_names[site->call], others);
}

void hps_simt_misaligned(const void *address, unsigned bytes)
{
    fail("misaligned: an access of %u bytes at %p", bytes, address);
}

/* ---- calls that lanes make together ---------------------------------------------------------- */

static inline bool site_is(const struct site *site, const char *file, int line,
                           enum hps_simt_call call)
{
    return site->line == line && site->call == call && site->file == file;
}

/* A file's name may have a different address in each translation unit. */
static inline bool site_differs(const struct site *site, const char *file, int line,
                                enum hps_simt_call call)
{
    return !site_is(site, file, line, call) &&
           !(site->line == line && site->call == call && strcmp(site->file, file) == 0);
}

/* Switch to another lane of the warp, or to the stream if none can run. */
static inline void lane_yield(struct lane *self)
{
    struct warp *warp = self->warp;
    uint32_t ready = warp->present & ~warp->arrived & ~warp->blocked;
    struct hps_fiber *next = self->simt->stream;
    if (ready != 0) {
        uint32_t after = ready & ~((2U << self->index) - 1U);
        next = warp->lanes[hps_first_bit(after != 0 ? after : ready)]->fiber;
    } else if (warp->arrived != 0) {
        uint32_t others = ~warp->arrived;
        fail_diverged(warp->arrived, &warp->site, others,
                      warp->blocked != 0 ? &warp->barrier : NULL);
    }
    hps_fiber_switch(self->fiber, next);
    hps_simt_here = &self->here;
}

const struct hps_simt_meeting *hps_simt_meet(bool vote, uint64_t value, enum hps_simt_call call,
                                             const char *file, int line)
{
    struct lane *self = (struct lane *)(uintptr_t)hps_simt_here;
    struct warp *warp = self->warp;
    struct hps_simt_meeting *meeting = &warp->met[warp->meetings & 1];
    uint32_t bit = 1U << self->index;
    if (warp->arrived == 0) {
        warp->site = (struct site){file, line, call};
        meeting->votes = 0;
    } else if (site_differs(&warp->site, file, line, call)) {
        struct site here = {file, line, call};
        fail_diverged(warp->arrived, &warp->site, bit, &here);
    }
    meeting->values[self->index] = value;
    meeting->votes |= vote ? bit : 0;
    warp->arrived |= bit;
    if (warp->arrived == (uint32_t)ALL_LANES) {
        warp->arrived = 0;
        warp->meetings++;
    } else {
        lane_yield(self);
    }
    return meeting;
}

void hps_simt_far_lane(uint32_t lane, const char *file, int line)
{
    fail("%s:%d: a shuffle from lane %u", file, line, lane);
}

void hps_simt_warp_barrier(const char *file, int line)
{
    struct lane *self = (struct lane *)(uintptr_t)hps_simt_here;
    uint64_t *order = &self->simt->memory->warp_order[self->warp->index][self->warp->meetings & 1];
    HPS_ORDER_RELEASE(order);
    (void)hps_simt_meet(false, 0, HPS_SIMT_WARP_BARRIER, file, line);
    HPS_ORDER_ACQUIRE(order);
}

void hps_simt_block_barrier(const char *file, int line)
{
    struct lane *self = (struct lane *)(uintptr_t)hps_simt_here;
    struct warp *warp = self->warp;
    if (warp->blocked == 0) {
        warp->barrier = (struct site){file, line, HPS_SIMT_BLOCK_BARRIER};
    } else if (site_differs(&warp->barrier, file, line, HPS_SIMT_BLOCK_BARRIER)) {
        struct site here = {file, line, HPS_SIMT_BLOCK_BARRIER};
        fail_diverged(warp->blocked, &warp->barrier, 1U << self->index, &here);
    }
    uint64_t *order = &self->simt->memory->block_order[self->simt->barriers & 1];
    HPS_ORDER_RELEASE(order);
    warp->blocked |= 1U << self->index;
    lane_yield(self);
    HPS_ORDER_ACQUIRE(order);
}

/* ---- blocks ---------------------------------------------------------------------------------- */

static void lane_run(void *arg)
{
    struct lane *self = arg;
    struct hps_simt *simt = self->simt;
    for (;;) {
        hps_simt_here = &self->here;
        if (self->launch != simt->launch || simt->kernel->shared_size != 0) { /* new per block */
            self->launch = simt->launch;
            HPS_ORDER_ACQUIRE(&simt->launch_order);
        }
        simt->body(simt->args);
        self->warp->present &= ~(1U << self->index);
        lane_yield(self);
    }
}

static uint32_t simt_random(struct hps_simt *simt, uint32_t below)
{
    if (simt->random == 0) {
        return 0; /* no seed: in order */
    }
    simt->random ^= simt->random << 13;
    simt->random ^= simt->random >> 7;
    simt->random ^= simt->random << 17;
    return (uint32_t)((simt->random >> 32) % below);
}

static void block_prepare(struct hps_simt *simt, uint32_t n_blocks)
{
    uint32_t n_threads = simt->kernel->block_threads;
    for (uint32_t i = 0; i < n_threads; i++) {
        struct lane *lane = simt->lanes[simt->set][(i + simt->block * ROTATION) % n_threads];
        struct warp *warp = &simt->warps[i / HPS_WARP];
        lane->here =
            (struct hps_simt_thread){i, simt->block, n_threads, n_blocks, simt->memory->shared};
        lane->index = i % HPS_WARP;
        lane->warp = warp;
        warp->lanes[lane->index] = lane;
    }
    for (uint32_t i = 0; i < n_threads / HPS_WARP; i++) {
        struct warp *warp = &simt->warps[i];
        warp->index = i;
        warp->present = (uint32_t)ALL_LANES;
        warp->arrived = 0;
        warp->blocked = 0;
    }
    /* Only the stream's own work, so that no block is ordered after another. */
    HPS_ORDER_RELEASE(&simt->launch_order);
}

/* Run the warp until all its lanes have returned or wait at a block barrier. Returns whether they
 * wait. */
static bool warp_run(struct hps_simt *simt, struct warp *warp)
{
    warp->blocked = 0;
    hps_fiber_switch(simt->stream, warp->lanes[simt_random(simt, HPS_WARP)]->fiber);
    if (warp->blocked != 0 && warp->present != (uint32_t)ALL_LANES) {
        fail_diverged(warp->blocked, &warp->barrier, ~warp->present, NULL);
    }
    return warp->blocked != 0;
}

static void block_run(struct hps_simt *simt)
{
    uint32_t n_warps = simt->kernel->block_threads / HPS_WARP;
    uint32_t n_waiting;
    do {
        uint32_t first = simt_random(simt, n_warps);
        const struct warp *leader = NULL;
        n_waiting = 0;
        for (uint32_t i = 0; i < n_warps; i++) {
            struct warp *warp = &simt->warps[(first + i) % n_warps];
            if (!warp_run(simt, warp)) {
                continue;
            }
            n_waiting++;
            const struct site *site = &warp->barrier;
            if (leader == NULL) {
                leader = warp;
            } else if (site_differs(&leader->barrier, site->file, site->line, site->call)) {
                fail("diverged: warp %u waits at %s:%d (block barrier), warp %u at %s:%d",
                     leader->index, leader->barrier.file, leader->barrier.line, warp->index,
                     site->file, site->line);
            }
        }
        if (n_waiting != 0 && n_waiting != n_warps) {
            fail("diverged: %u of %u warps wait at %s:%d (block barrier), the others have returned",
                 n_waiting, n_warps, leader->barrier.file, leader->barrier.line);
        }
        simt->barriers++;
    } while (n_waiting != 0);
}

/* ---- launches -------------------------------------------------------------------------------- */

hps_status hps_simt_new(uint64_t seed, struct hps_simt **out_simt)
{
    struct hps_simt *simt = hps_calloc(1, sizeof(*simt));
    if (simt == NULL) {
        return HPS_NO_MEMORY;
    }
    simt->random = seed;
    hps_status status = hps_fiber_of_thread(&simt->stream);
    if (status != HPS_OK) {
        hps_free(simt);
        return status;
    }
    *out_simt = simt;
    return HPS_OK;
}

void hps_simt_free(struct hps_simt *simt)
{
    if (simt == NULL) {
        return;
    }
    for (uint32_t set = 0; set < SETS; set++) {
        for (uint32_t i = 0; i < simt->n_lanes[set]; i++) {
            hps_fiber_free(simt->lanes[set][i]->fiber);
            hps_free_aligned(simt->lanes[set][i]);
        }
    }
    hps_fiber_free(simt->stream);
    hps_free(simt);
}

static hps_status simt_grow(struct hps_simt *simt, uint32_t set, uint32_t n_lanes)
{
    while (simt->n_lanes[set] < n_lanes) {
        struct lane *lane = hps_alloc_aligned(64, sizeof(*lane));
        if (lane == NULL) {
            return HPS_NO_MEMORY;
        }
        memset(lane, 0, sizeof(*lane));
        lane->simt = simt;
        hps_status status =
            hps_fiber_new(STACK_BYTES, simt->n_lanes[set], lane_run, lane, &lane->fiber);
        if (status != HPS_OK) {
            hps_free_aligned(lane);
            return status;
        }
        simt->lanes[set][simt->n_lanes[set]++] = lane;
    }
    return HPS_OK;
}

static struct block_memory *memory_new(const struct hps_simt *simt)
{
    size_t size = sizeof(struct block_memory) + simt->kernel->shared_size + GUARD_BYTES;
    struct block_memory *memory = hps_alloc_aligned(16, size);
    if (memory != NULL) {
        memory->next = simt->memory;
        memset(memory->shared, UNDEFINED_BYTE, simt->kernel->shared_size);
        HPS_POISON(memory->shared + simt->kernel->shared_size, GUARD_BYTES);
    }
    return memory;
}

static void memory_drop(const struct hps_simt *simt, struct block_memory *memory)
{
    if (memory != NULL) {
        HPS_UNPOISON(memory->shared + simt->kernel->shared_size, GUARD_BYTES);
        hps_free_aligned(memory);
    }
}

static void memory_free(struct hps_simt *simt)
{
    while (simt->memory != NULL) {
        struct block_memory *memory = simt->memory;
        simt->memory = memory->next;
        memory_drop(simt, memory);
    }
}

#if defined(HPS_TSAN)
/* Order the end of the launch after all work of its lanes. */
static void launch_end(struct hps_simt *simt)
{
    for (uint32_t set = 0; set < SETS; set++) {
        for (uint32_t i = 0; i < simt->n_lanes[set]; i++) {
            const struct lane *lane = simt->lanes[set][i];
            if (lane->launch == simt->launch) {
                hps_fiber_release(simt->stream, lane->fiber, &simt->end_order);
            }
        }
    }
    HPS_ORDER_ACQUIRE(&simt->end_order);
}
#endif

hps_status hps_simt_run(struct hps_simt *simt, const struct hps_kernel *kernel, uint32_t n_blocks,
                        const void *args)
{
    HPS_ASSERT(n_blocks > 0);
    HPS_ASSERT(kernel->block_threads % HPS_WARP == 0);
    HPS_ASSERT(kernel->block_threads > 0 && kernel->block_threads <= THREADS_MAX);
    hps_status status = HPS_OK;
    simt->kernel = kernel;
    simt->body = hps_sim_body_of(kernel);
    simt->args = args;
    simt->launch++;
    uint32_t first = simt_random(simt, n_blocks);
    for (uint32_t i = 0; i < n_blocks && status == HPS_OK; i++) {
        struct block_memory *memory = memory_new(simt);
        simt->set = i % SETS;
        status = simt_grow(simt, simt->set, kernel->block_threads);
        if (memory == NULL || status != HPS_OK) {
            memory_drop(simt, memory);
            status = HPS_NO_MEMORY;
            break;
        }
        simt->memory = memory;
        simt->block = (first + i) % n_blocks;
        block_prepare(simt, n_blocks);
        block_run(simt);
#if !defined(HPS_TSAN)
        memory_free(simt);
#endif
    }
    hps_simt_here = NULL;
#if defined(HPS_TSAN)
    launch_end(simt);
#endif
    memory_free(simt);
    return status;
}
