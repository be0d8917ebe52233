/* SPDX-License-Identifier: Apache-2.0
 *
 * The archives of Debian are linked after a change of names (CMakeLists.txt). They are not made for
 * shared libraries, so they cannot refer to variables of libc. And the glibc of a server may lack
 * arc4random, which came with 2.36.
 */
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>

FILE *hps_triton_stderr;
FILE *hps_triton_stdin;

uint32_t hps_triton_random(void);
void hps_triton_random_buf(void *buf, size_t size);

__attribute__((constructor)) static void set_files(void)
{
    hps_triton_stderr = stderr;
    hps_triton_stdin = stdin;
}

void hps_triton_random_buf(void *buf, size_t size)
{
    uint8_t *at = buf;

    while (size > 0) {
        ssize_t n = getrandom(at, size, 0);
        if (n < 0 && errno != EINTR) {
            abort(); /* as arc4random does */
        }
        at += n > 0 ? n : 0;
        size -= n > 0 ? (size_t)n : 0;
    }
}

uint32_t hps_triton_random(void)
{
    uint32_t value;

    hps_triton_random_buf(&value, sizeof(value));
    return value;
}
