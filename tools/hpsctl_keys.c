/* SPDX-License-Identifier: Apache-2.0
 *
 * Keys on the command line, one per word. With bags each word is a bag: KEY[:WEIGHT] separated by
 * commas. An empty word is an empty bag. One thread.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/args.h"
#include "base/assert.h"
#include "base/heap.h"
#include "tools/hpsctl.h"

enum { KEY_TEXT_BYTES = 64 };

static size_t n_keys_of(const char *bag)
{
    size_t n = bag[0] == '\0' ? 0 : 1;

    for (; *bag != '\0'; bag++) {
        n += *bag == ',' ? 1 : 0;
    }
    return n;
}

/* Reads one KEY[:WEIGHT] of `size` bytes. */
static bool read_weighted(const struct hpsctl *ctl, const char *text, size_t size,
                          struct hpsctl_keys *keys)
{
    char copy[KEY_TEXT_BYTES];
    double weight = 1;

    (void)snprintf(copy, sizeof(copy), "%.*s", (int)(size < sizeof(copy) ? size : sizeof(copy)),
                   text);
    char *colon = strchr(copy, ':');
    if (colon != NULL) {
        *colon = '\0';
        if (!hps_args_f64(colon + 1, &weight) || !isfinite((float)weight)) {
            (void)hpsctl_usage(ctl, "weight \"%s\" of key %s: expected a number that fits fp32",
                               colon + 1, copy);
            return false;
        }
        keys->weighted = true;
    }
    if (!hpsctl_key_arg(ctl, copy, &keys->keys[keys->n_keys])) {
        return false;
    }
    keys->weights[keys->n_keys++] = (float)weight;
    return true;
}

static bool read_bag(const struct hpsctl *ctl, const char *bag, struct hpsctl_keys *keys)
{
    for (size_t i = 0, n = n_keys_of(bag); i < n; i++) {
        size_t size = strcspn(bag, ",");
        if (!read_weighted(ctl, bag, size, keys)) {
            return false;
        }
        bag += size + (bag[size] == ',' ? 1 : 0);
    }
    keys->offsets[++keys->n_bags] = (uint32_t)keys->n_keys;
    return true;
}

/* Reads one key. */
static bool read_key(const struct hpsctl *ctl, const char *word, struct hpsctl_keys *keys)
{
    if (word[strcspn(word, ",:")] != '\0') {
        (void)hpsctl_usage(
            ctl, "key \"%s\": expected a 64-bit integer, or --pooling for a bag of keys", word);
        return false;
    }
    return hpsctl_key_arg(ctl, word, &keys->keys[keys->n_keys++]);
}

int hpsctl_keys_read(const struct hpsctl *ctl, int first, bool bags, struct hpsctl_keys *out_keys)
{
    HPS_ASSERT(first <= ctl->n_words);
    size_t n_words = (size_t)(ctl->n_words - first);
    struct hpsctl_keys keys = {0};
    size_t n_keys = 0;

    for (size_t i = 0; i < n_words; i++) {
        n_keys += bags ? n_keys_of(ctl->words[(size_t)first + i]) : 1;
    }
    keys.keys = hps_calloc(n_keys + 1, sizeof(*keys.keys));
    keys.status = hps_calloc(n_keys + 1, 1);
    keys.weights = hps_calloc(n_keys + 1, sizeof(*keys.weights));
    keys.offsets = hps_calloc(n_words + 1, sizeof(*keys.offsets));
    if (keys.keys == NULL || keys.status == NULL || keys.weights == NULL || keys.offsets == NULL) {
        hpsctl_keys_free(&keys);
        return hpsctl_no_memory();
    }
    for (size_t i = 0; i < n_words; i++) {
        const char *word = ctl->words[(size_t)first + i];
        if (bags ? !read_bag(ctl, word, &keys) : !read_key(ctl, word, &keys)) {
            hpsctl_keys_free(&keys);
            return TOOL_USAGE;
        }
    }
    *out_keys = keys;
    return TOOL_OK;
}

void hpsctl_keys_free(struct hpsctl_keys *keys)
{
    hps_free(keys->keys);
    hps_free(keys->status);
    hps_free(keys->weights);
    hps_free(keys->offsets);
    *keys = (struct hpsctl_keys){0};
}
