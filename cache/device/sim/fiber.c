/* SPDX-License-Identifier: Apache-2.0
 *
 * Switching of stacks: a few instructions on x86-64 and aarch64, ucontext elsewhere. A switch is a
 * call, so it saves only the registers that a callee must preserve. Floating-point modes belong to
 * the thread.
 */
#include "cache/device/sim/fiber.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/heap.h"
#include "base/poison.h"
#include "cache/device/sim/lock.h"
#include "cache/device/sim/sanitize.h"

#if !defined(__x86_64__) && !defined(__aarch64__)
#define FIBER_UCONTEXT
#include <ucontext.h>
#endif

enum {
    LINE_BYTES = 64,
    COLOUR_BYTES = 128, /* distance between the starts of stacks, */
    COLOURS = 32,       /* and number of different starts: spreads a warp's stacks over a page */
    SPARES_MAX = 4096,
};

struct hps_fiber {
#if defined(FIBER_UCONTEXT)
    ucontext_t context;
#else
    void *sp; /* where its registers are saved while it does not run */
#endif
    void (*run)(void *arg);
    void *arg;
    void *map; /* stack and guard page; NULL: the thread's own stack */
    size_t map_bytes;
    const void *stack; /* for AddressSanitizer; of a thread, known once it is first left */
    size_t stack_bytes;
    void *fake_stack;
    void *tsan;
    struct hps_fiber *next; /* in the list of spares */
};

/* ---- the switch itself ----------------------------------------------------------------------- */

#if defined(__x86_64__)

#if !defined(HPS_FIBER_BARE)
void hps_fiber_swap(void **from_sp, void *to_sp);
#endif
/* Saves into *from_sp, continues at to_sp. */
__asm__(".text\n"
        ".globl hps_fiber_swap\n"
        ".hidden hps_fiber_swap\n"
        ".type hps_fiber_swap,@function\n"
        "hps_fiber_swap:\n"
        "    pushq %rbp\n"
        "    pushq %rbx\n"
        "    pushq %r12\n"
        "    pushq %r13\n"
        "    pushq %r14\n"
        "    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n"
        "    popq %r14\n"
        "    popq %r13\n"
        "    popq %r12\n"
        "    popq %rbx\n"
        "    popq %rbp\n"
        "    ret\n"
        ".size hps_fiber_swap,.-hps_fiber_swap\n"
        ".type fiber_first,@function\n"
        "fiber_first:\n" /* backtraces end here */
        "    movq %rbx, %rdi\n"
        "    call fiber_start\n"
        "    ud2\n"
        ".size fiber_first,.-fiber_first\n");

enum { SAVED_WORDS = 7, FIBER_WORD = 4, LINK_WORD = 6 }; /* rbx and the return address */

#elif defined(__aarch64__)

#if !defined(HPS_FIBER_BARE)
void hps_fiber_swap(void **from_sp, void *to_sp);
#endif
__asm__(".text\n"
        ".globl hps_fiber_swap\n"
        ".hidden hps_fiber_swap\n"
        ".type hps_fiber_swap,%function\n"
        "hps_fiber_swap:\n"
        "    sub sp, sp, #160\n"
        "    stp x19, x20, [sp, #0]\n"
        "    stp x21, x22, [sp, #16]\n"
        "    stp x23, x24, [sp, #32]\n"
        "    stp x25, x26, [sp, #48]\n"
        "    stp x27, x28, [sp, #64]\n"
        "    stp x29, x30, [sp, #80]\n"
        "    stp d8, d9, [sp, #96]\n"
        "    stp d10, d11, [sp, #112]\n"
        "    stp d12, d13, [sp, #128]\n"
        "    stp d14, d15, [sp, #144]\n"
        "    mov x9, sp\n"
        "    str x9, [x0]\n"
        "    mov sp, x1\n"
        "    ldp x19, x20, [sp, #0]\n"
        "    ldp x21, x22, [sp, #16]\n"
        "    ldp x23, x24, [sp, #32]\n"
        "    ldp x25, x26, [sp, #48]\n"
        "    ldp x27, x28, [sp, #64]\n"
        "    ldp x29, x30, [sp, #80]\n"
        "    ldp d8, d9, [sp, #96]\n"
        "    ldp d10, d11, [sp, #112]\n"
        "    ldp d12, d13, [sp, #128]\n"
        "    ldp d14, d15, [sp, #144]\n"
        "    add sp, sp, #160\n"
        "    ret\n"
        ".size hps_fiber_swap,.-hps_fiber_swap\n"
        ".type fiber_first,%function\n"
        "fiber_first:\n" /* backtraces end here */
        "    mov x0, x19\n"
        "    bl fiber_start\n"
        "    brk #1\n"
        ".size fiber_first,.-fiber_first\n");

enum { SAVED_WORDS = 20, FIBER_WORD = 0, LINK_WORD = 11 }; /* x19 and x30 */

#endif

#if !defined(FIBER_UCONTEXT)
void fiber_first(void);
__attribute__((used)) static void fiber_start(struct hps_fiber *fiber);

/* The state of a fiber that was left before the first instruction of fiber_first. */
static void *first_frame(uintptr_t top, struct hps_fiber *fiber)
{
    uint64_t *sp = (uint64_t *)(top & ~(uintptr_t)15) - SAVED_WORDS;
    for (unsigned i = 0; i < SAVED_WORDS; i++) {
        sp[i] = 0;
    }
    sp[FIBER_WORD] = (uint64_t)(uintptr_t)fiber;
    sp[LINK_WORD] = (uint64_t)(uintptr_t)fiber_first;
    return sp;
}
#endif

/* ---- notifying the sanitizers ---------------------------------------------------------------- */

#if !defined(HPS_FIBER_BARE)

/* Per thread: the fiber that was left last, for `arrive`. */
static _Thread_local struct hps_fiber *left;

/* On the old stack, before the switch. */
static void leave(struct hps_fiber *from, struct hps_fiber *to)
{
    left = from;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&from->fake_stack, to->stack, to->stack_bytes);
#endif
#if defined(HPS_TSAN)
    __tsan_switch_to_fiber(to->tsan, __tsan_switch_to_fiber_no_sync);
#else
    (void)to;
#endif
}

/* On the new stack, after the switch. fake_stack: as saved at the last switch away; NULL at
 * first. */
__attribute__((no_sanitize("address"))) static void arrive(void *fake_stack)
{
#if defined(__SANITIZE_ADDRESS__)
    const void *bottom;
    size_t bytes;
    __sanitizer_finish_switch_fiber(fake_stack, &bottom, &bytes);
    if (left->map == NULL) {
        left->stack = bottom;
        left->stack_bytes = bytes;
    }
#else
    (void)fake_stack;
#endif
}

#else /* HPS_FIBER_BARE */

static void arrive(void *fake_stack)
{
    (void)fake_stack;
}

#endif

/* ---- fibers ---------------------------------------------------------------------------------- */

__attribute__((used)) static void fiber_start(struct hps_fiber *fiber)
{
    arrive(NULL);
    fiber->run(fiber->arg);
    hps_assert_failed("a fiber does not return", __FILE__, __LINE__);
}

/* Aligned to cache lines: a switch touches only the first one. */
static struct hps_fiber *fiber_alloc(void)
{
    struct hps_fiber *fiber = hps_alloc_aligned(LINE_BYTES, sizeof(*fiber));
    if (fiber != NULL) {
        memset(fiber, 0, sizeof(*fiber));
    }
    return fiber;
}

hps_status hps_fiber_of_thread(struct hps_fiber **out_fiber)
{
    struct hps_fiber *fiber = fiber_alloc();
    if (fiber == NULL) {
        return HPS_NO_MEMORY;
    }
#if defined(HPS_TSAN)
    fiber->tsan = __tsan_get_current_fiber();
#endif
    *out_fiber = fiber;
    return HPS_OK;
}

#if defined(FIBER_UCONTEXT)
static _Thread_local struct hps_fiber *starting;

static void fiber_start_ucontext(void)
{
    fiber_start(starting);
}
#endif

static hps_status fiber_map(size_t map_bytes, size_t page, struct hps_fiber **out_fiber)
{
    struct hps_fiber *fiber = fiber_alloc();
    if (fiber == NULL) {
        return HPS_NO_MEMORY;
    }
    fiber->map_bytes = map_bytes;
    fiber->map = mmap(NULL, map_bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (fiber->map == MAP_FAILED) {
        hps_free_aligned(fiber);
        return HPS_NO_MEMORY;
    }
    if (mprotect(fiber->map, page, PROT_NONE) != 0) {
        munmap(fiber->map, map_bytes);
        hps_free_aligned(fiber);
        return HPS_NO_MEMORY;
    }
#if defined(HPS_TSAN)
    fiber->tsan = __tsan_create_fiber(0);
#endif
    *out_fiber = fiber;
    return HPS_OK;
}

static void fiber_unmap(struct hps_fiber *fiber)
{
#if defined(HPS_TSAN)
    __tsan_destroy_fiber(fiber->tsan);
#endif
    munmap(fiber->map, fiber->map_bytes);
    hps_free_aligned(fiber);
}

/* ---- spares: freed fibers for any thread to reuse -------------------------------------------- */

/* For ThreadSanitizer each fiber is a thread, which is expensive to make. */
#if defined(HPS_TSAN)
static struct hps_sim_lock spares_lock;
static struct hps_fiber *spares;
static unsigned n_spares;

static struct hps_fiber *spare_take(size_t map_bytes)
{
    hps_sim_lock(&spares_lock);
    struct hps_fiber *fiber = spares;
    if (fiber != NULL && fiber->map_bytes == map_bytes) {
        spares = fiber->next;
        n_spares--;
    } else {
        fiber = NULL;
    }
    hps_sim_unlock(&spares_lock);
    return fiber;
}

static bool spare_keep(struct hps_fiber *fiber)
{
    hps_sim_lock(&spares_lock);
    bool kept = n_spares < SPARES_MAX;
    if (kept) {
        fiber->next = spares;
        spares = fiber;
        n_spares++;
    }
    hps_sim_unlock(&spares_lock);
    return kept;
}

#else /* no spares, so that tests that count memory see every fiber */

static struct hps_fiber *spare_take(size_t map_bytes)
{
    (void)map_bytes;
    return NULL;
}

static bool spare_keep(struct hps_fiber *fiber)
{
    (void)fiber;
    return false;
}
#endif

/* ---- made and freed -------------------------------------------------------------------------- */

hps_status hps_fiber_new(size_t stack_bytes, unsigned index, void (*run)(void *arg), void *arg,
                         struct hps_fiber **out_fiber)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t colour = (size_t)(index % COLOURS) * COLOUR_BYTES;
    size_t map_bytes = (stack_bytes + COLOURS * COLOUR_BYTES + 2 * page - 1) / page * page;
    struct hps_fiber *fiber = spare_take(map_bytes);
    hps_status status = fiber != NULL ? HPS_OK : fiber_map(map_bytes, page, &fiber);
    if (status != HPS_OK) {
        return status;
    }
    fiber->run = run;
    fiber->arg = arg;
    fiber->fake_stack = NULL;
    fiber->stack = (char *)fiber->map + page;
    fiber->stack_bytes = map_bytes - page - colour;
#if defined(FIBER_UCONTEXT)
    getcontext(&fiber->context);
    fiber->context.uc_stack.ss_sp = (char *)fiber->map + page;
    fiber->context.uc_stack.ss_size = fiber->stack_bytes;
    makecontext(&fiber->context, fiber_start_ucontext, 0);
#else
    fiber->sp = first_frame((uintptr_t)fiber->stack + fiber->stack_bytes, fiber);
#endif
    *out_fiber = fiber;
    return HPS_OK;
}

void hps_fiber_free(struct hps_fiber *fiber)
{
    if (fiber == NULL) {
        return;
    }
    if (fiber->map == NULL) {
        hps_free_aligned(fiber);
        return;
    }
    HPS_UNPOISON(fiber->map, fiber->map_bytes); /* abandoned frames may have left poison */
    if (!spare_keep(fiber)) {
        fiber_unmap(fiber);
    }
}

#if defined(HPS_TSAN)
void hps_fiber_release(const struct hps_fiber *self, const struct hps_fiber *fiber,
                       uint64_t *address)
{
    __tsan_switch_to_fiber(fiber->tsan, __tsan_switch_to_fiber_no_sync);
    HPS_ORDER_RELEASE(address);
    __tsan_switch_to_fiber(self->tsan, __tsan_switch_to_fiber_no_sync);
}
#endif

#if !defined(HPS_FIBER_BARE)
void hps_fiber_switch(struct hps_fiber *from, struct hps_fiber *to)
{
    leave(from, to);
#if defined(FIBER_UCONTEXT)
    starting = to;
    swapcontext(&from->context, &to->context);
#else
    hps_fiber_swap(&from->sp, to->sp);
#endif
    arrive(from->fake_stack);
}
#endif
