/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads an input as a list of actions: numbers and runs of bytes, from front to back. After the
 * end, numbers are 0 and runs are empty, so every input is valid.
 */
#ifndef HPS_TESTS_FUZZ_SCRIPT_H
#define HPS_TESTS_FUZZ_SCRIPT_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Called by libFuzzer or replay.c. Returns 0. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct script {
    const uint8_t *at;
    size_t left;
};

static inline uint8_t script_u8(struct script *script)
{
    if (script->left == 0) {
        return 0;
    }
    script->left--;
    return *script->at++;
}

static inline uint32_t script_u32(struct script *script)
{
    uint32_t value = 0;

    for (unsigned i = 0; i < 4; i++) {
        value = value << 8 | script_u8(script);
    }
    return value;
}

/* A run of `size` bytes, or of the remaining bytes if there are fewer. */
static inline const uint8_t *script_take(struct script *script, size_t size, size_t *out_size)
{
    const uint8_t *data = script->at;

    *out_size = size < script->left ? size : script->left;
    script->at += *out_size;
    script->left -= *out_size;
    return data;
}

/* A run with its size, at most 255, in the byte before it. */
static inline const uint8_t *script_run(struct script *script, size_t *out_size)
{
    return script_take(script, script_u8(script), out_size);
}

/* Like script_run, as text without NUL bytes. Returns `out`. */
static inline char *script_text(struct script *script, char out[256])
{
    size_t n = 0;
    size_t size;
    const uint8_t *data = script_run(script, &size);

    for (size_t i = 0; i < size; i++) {
        if (data[i] != '\0') {
            out[n++] = (char)data[i];
        }
    }
    out[n] = '\0';
    return out;
}

#endif
