/* SPDX-License-Identifier: Apache-2.0
 *
 * Deliberate mistakes of GPU programs. Rows are copied to the device on one stream, applied and
 * looked up on another stream, and copied back, through reused slots. The program `right` is
 * correct. Each other program omits or breaks one thing, and ThreadSanitizer, AddressSanitizer
 * or the simulated device must detect it. If a mistake is not detected here, the absence of
 * reports about the cache proves nothing.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cache/device/sim/sim.h"
#include "cache/device/simt.h"

enum {
    THREADS = 64,
    BLOCKS = 4,
    N = THREADS * BLOCKS, /* words of a row that travel in a round */
    SLOTS = 2,
    ROUNDS = 12,
};

enum mistake {
    NONE,
    FORGOTTEN_EVENT, /* the second stream does not wait for the copy on the first */
    MISSING_WAIT,    /* the host reads before the event has completed */
    EARLY_REUSE,     /* the host fills a slot that a copy may still read */
    OVERRUN,         /* a kernel stores one byte past the end */
    PLAIN_COUNTER,   /* a kernel counts without an atomic */
    MISSING_BARRIER, /* a thread reads shared memory that another thread writes */
    SHUFFLE_EDGE,    /* a lane uses a shuffle as a barrier */
    BLOCK_EDGE,      /* a block reads memory that another block writes */
    RELAXED_TICKET,  /* the last block does not see the writes of other blocks */
    DIVERGENT        /* half of a warp shuffles */
};
static const char *const names[] = {"right",           "forgotten_event", "missing_wait",
                                    "early_reuse",     "overrun",         "plain_counter",
                                    "missing_barrier", "shuffle_edge",    "block_edge",
                                    "relaxed_ticket",  "divergent"};

struct apply_args {
    const uint32_t *from;
    uint32_t *to;
    uint32_t *counter;
    uint32_t *sums; /* [BLOCKS] */
    uint32_t *tickets;
    uint32_t *total;
    uint32_t mistake;
    uint32_t pad;
};

struct apply_shared {
    uint32_t words[THREADS];
    uint32_t is_last;
};

static void apply_last_block(const struct apply_args *args, struct apply_shared *shared)
{
    if (hps_thread() == 0) {
        uint32_t sum = 0;
        for (uint32_t i = 0; i < THREADS; i++) {
            sum += shared->words[i];
        }
        args->sums[hps_block()] = sum;
        uint32_t ticket = args->mistake == RELAXED_TICKET
                              ? hps_atomic_add_u32(args->tickets, 1, HPS_RELAXED)
                              : hps_atomic_add_u32(args->tickets, 1, HPS_ACQ_REL);
        shared->is_last = ticket == BLOCKS - 1 ? 1 : 0;
    }
    hps_block_barrier();
    if (shared->is_last != 0 && hps_thread() == 0) {
        uint32_t total = 0;
        for (uint32_t i = 0; i < BLOCKS; i++) {
            total += args->sums[i];
        }
        *args->total = total;
        *args->tickets = 0;
    }
}

HPS_KERNEL(apply, struct apply_args, args, THREADS, 1)
{
    HPS_SHARED(struct apply_shared, shared);
    uint32_t i = hps_grid_thread();
    uint32_t word = args->from[i];
    shared->words[hps_thread()] = word;
    args->to[i] = word;
    if (args->mistake == SHUFFLE_EDGE) {
        uint32_t lane = hps_shuffle_u32((hps_lane() + 1) % HPS_WARP, hps_lane());
        word += shared->words[hps_warp() * HPS_WARP + lane];
    }
    if (args->mistake != MISSING_BARRIER) {
        hps_block_barrier();
    }
    word += shared->words[(hps_thread() + HPS_WARP) % THREADS];
    if (args->mistake == BLOCK_EDGE) {
        word += args->to[(i + THREADS) % N];
    }
    if (args->mistake == DIVERGENT && hps_lane() < 16) {
        word += hps_shuffle_u32(word, 0);
    }
    if (args->mistake == PLAIN_COUNTER) {
        *args->counter += word % 2;
    } else {
        hps_atomic_add_u32(args->counter, word % 2, HPS_RELAXED);
    }
    if (args->mistake == OVERRUN && i == N - 1) {
        ((uint8_t *)args->to)[N * sizeof(uint32_t)] = 1;
    }
    apply_last_block(args, shared);
}
static const struct hps_kernel apply_kernel = {
    "apply", sizeof(struct apply_args), THREADS, sizeof(struct apply_shared), apply_sim, NULL};

struct slot {
    uint32_t *in; /* [N] of the host */
    uint32_t *out;
    struct hps_event *copied_in;
    struct hps_event *done;
};

struct program {
    enum mistake mistake;
    struct hps_device *device;
    struct hps_stream_q *copies;
    struct hps_stream_q *work;
    struct slot slots[SLOTS];
    hps_devptr staged; /* [SLOTS][N] */
    hps_devptr rows;   /* [N] */
    hps_devptr words;  /* counter, tickets, total, sums */
};

/* A program that cannot run must not look like a detected mistake. */
static void must(hps_status status, const char *what)
{
    if (status != HPS_OK) {
        printf("device_control: %s: %s\n", what, hps_status_text(status));
        exit(0);
    }
}

static void program_open(struct program *program)
{
    const struct hps_sim_driver sim =
        hps_sim_driver((struct hps_device_sim_config){.seed = 7, .delay_us_max = 100});
    const struct hps_kernel *kernel = &apply_kernel;
    must(hps_device_open(&sim.driver, 0, &kernel, 1, &program->device, NULL), "open");
    struct hps_device *device = program->device;
    must(hps_stream_q_new(device, "copies", false, &program->copies, NULL), "stream");
    must(hps_stream_q_new(device, "work", false, &program->work, NULL), "stream");
    for (unsigned i = 0; i < SLOTS; i++) {
        struct slot *slot = &program->slots[i];
        hps_devptr mapped;
        void *in = NULL;
        void *out = NULL;
        must(hps_device_host_alloc(device, N * 4, &in, &mapped, NULL), "memory");
        must(hps_device_host_alloc(device, N * 4, &out, &mapped, NULL), "memory");
        must(hps_event_new(device, &slot->copied_in, NULL), "event");
        must(hps_event_new(device, &slot->done, NULL), "event");
        slot->in = in;
        slot->out = out;
    }
    must(hps_device_alloc(device, SLOTS * N * 4, &program->staged, NULL), "memory");
    must(hps_device_alloc(device, N * 4, &program->rows, NULL), "memory");
    must(hps_device_alloc(device, 64, &program->words, NULL), "memory");
    must(hps_fill_on_device(program->work, program->words, 0, 64), "fill");
}

static void program_close(struct program *program)
{
    hps_stream_q_free(program->copies);
    hps_stream_q_free(program->work);
    for (unsigned i = 0; i < SLOTS; i++) {
        hps_device_host_free(program->device, program->slots[i].in);
        hps_device_host_free(program->device, program->slots[i].out);
        hps_event_free(program->slots[i].copied_in);
        hps_event_free(program->slots[i].done);
    }
    hps_device_free(program->device, program->staged);
    hps_device_free(program->device, program->rows);
    hps_device_free(program->device, program->words);
    hps_device_close(program->device);
}

static void program_submit(struct program *program, unsigned round)
{
    struct slot *slot = &program->slots[round % SLOTS];
    hps_devptr staged = program->staged + round % SLOTS * N * 4;
    uint32_t *words = (uint32_t *)(uintptr_t)program->words;
    for (unsigned i = 0; i < N; i++) {
        slot->in[i] = round * N + i;
    }
    must(hps_copy_to_device(program->copies, staged, slot->in, N * 4), "copy");
    must(hps_event_record(slot->copied_in, program->copies), "record");
    if (program->mistake != FORGOTTEN_EVENT) {
        must(hps_stream_q_wait(program->work, slot->copied_in), "wait");
    }
    const struct apply_args args = {.from = (const uint32_t *)(uintptr_t)staged,
                                    .to = (uint32_t *)(uintptr_t)program->rows,
                                    .counter = words,
                                    .tickets = words + 1,
                                    .total = words + 2,
                                    .sums = words + 4,
                                    .mistake = program->mistake};
    must(hps_launch(program->work, &apply_kernel, BLOCKS, &args), "launch");
    must(hps_copy_to_host(program->work, slot->out, program->rows, N * 4), "copy");
    must(hps_event_record(slot->done, program->work), "record");
}

static unsigned program_take(struct program *program, unsigned round)
{
    const struct slot *slot = &program->slots[round % SLOTS];
    unsigned wrong = 0;
    if (program->mistake != MISSING_WAIT) {
        must(hps_event_wait(slot->done), "event");
    }
    for (unsigned i = 0; i < N; i++) {
        wrong += slot->out[i] != round * N + i;
    }
    return wrong;
}

static unsigned program_run(struct program *program)
{
    unsigned wrong = 0;
    for (unsigned round = 0; round < ROUNDS; round++) {
        /* One round is in flight while the next is submitted. */
        unsigned behind = program->mistake == EARLY_REUSE ? SLOTS : SLOTS - 1;
        program_submit(program, round);
        if (round >= behind) {
            wrong += program_take(program, round - behind);
        }
    }
    return wrong;
}

/* For the test runner, a signal is always a failure. */
static void on_abort(int number)
{
    (void)number;
    _exit(3);
}

int main(int argc, char **argv)
{
    (void)signal(SIGABRT, on_abort);
    for (unsigned i = 0; argc == 2 && i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcmp(argv[1], names[i]) == 0) {
            struct program program = {.mistake = (enum mistake)i};
            program_open(&program);
            unsigned wrong = program_run(&program);
            program_close(&program);
            printf("device_control: %s: %u words of %d wrong\n", names[i], wrong, N * ROUNDS);
            return i == NONE && wrong != 0;
        }
    }
    printf("device_control: which?\n");
    return 2;
}
