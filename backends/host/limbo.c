/* SPDX-License-Identifier: Apache-2.0
 *
 * A queue of blocks, each with one epoch stamp. On the thread of the table's writer.
 */
#include "backends/host/limbo.h"

#include "base/assert.h"
#include "base/heap.h"

enum {
    BLOCK_GONE = 128,
    SPARE_BLOCKS = 8, /* limit; after a reader that stays long there could be thousands */
};

struct hps_host_limbo_block {
    uint64_t stamp; /* set when sealed */
    bool sealed;
    bool passed;
    uint32_t n;
    uint32_t n_popped;
    struct hps_host_limbo_block *next;
    struct hps_host_gone gone[BLOCK_GONE];
};

static void block_reset(struct hps_host_limbo_block *block)
{
    block->sealed = false;
    block->passed = false;
    block->n = 0;
    block->n_popped = 0;
    block->next = NULL;
}

hps_status hps_host_limbo_open(struct hps_host_limbo *limbo, struct hps_epoch *epoch)
{
    struct hps_host_limbo_block *block = hps_alloc(sizeof(*block));
    if (block == NULL) {
        return HPS_NO_MEMORY;
    }
    block_reset(block);
    *limbo = (struct hps_host_limbo){.epoch = epoch, .head = block, .tail = block};
    return HPS_OK;
}

static void blocks_free(struct hps_host_limbo_block *block)
{
    while (block != NULL) {
        struct hps_host_limbo_block *next = block->next;
        hps_free(block);
        block = next;
    }
}

void hps_host_limbo_close(struct hps_host_limbo *limbo)
{
    blocks_free(limbo->head);
    blocks_free(limbo->spare);
    *limbo = (struct hps_host_limbo){0};
}

static void seal(struct hps_host_limbo *limbo, struct hps_host_limbo_block *block)
{
    HPS_ASSERT(!block->sealed && block->n > 0);
    block->stamp = hps_epoch_retire(limbo->epoch);
    block->sealed = true;
}

bool hps_host_limbo_push(struct hps_host_limbo *limbo, const struct hps_host_gone *gone)
{
    struct hps_host_limbo_block *block = limbo->tail;
    if (block->sealed || block->n == BLOCK_GONE) {
        struct hps_host_limbo_block *fresh = limbo->spare;
        if (fresh != NULL) {
            limbo->spare = fresh->next;
            limbo->n_spare--;
        } else {
            fresh = hps_alloc(sizeof(*fresh));
            if (fresh == NULL) {
                return false;
            }
        }
        block_reset(fresh);
        block->next = fresh;
        limbo->tail = fresh;
        block = fresh;
    }
    HPS_DEBUG_ASSERT(!block->sealed && block->n < BLOCK_GONE);
    block->gone[block->n++] = *gone;
    limbo->n++;
    if (block->n == BLOCK_GONE) {
        seal(limbo, block);
    }
    return true;
}

void hps_host_limbo_seal(struct hps_host_limbo *limbo)
{
    if (limbo->tail->n > 0 && !limbo->tail->sealed) {
        seal(limbo, limbo->tail);
    }
}

bool hps_host_limbo_pop(struct hps_host_limbo *limbo, struct hps_host_gone *out_gone)
{
    struct hps_host_limbo_block *block = limbo->head;
    if (!block->sealed) {
        return false;
    }
    block->passed = block->passed || hps_epoch_passed(limbo->epoch, block->stamp);
    if (!block->passed) {
        return false;
    }
    HPS_ASSERT(block->n_popped < block->n);
    HPS_ASSERT(limbo->n > 0);
    *out_gone = block->gone[block->n_popped++];
    limbo->n--;
    if (block->n_popped < block->n) {
        return true;
    }
    if (block == limbo->tail) {
        block_reset(block);
        return true;
    }
    limbo->head = block->next;
    if (limbo->n_spare == SPARE_BLOCKS) {
        hps_free(block);
        return true;
    }
    block->next = limbo->spare;
    limbo->spare = block;
    limbo->n_spare++;
    return true;
}
