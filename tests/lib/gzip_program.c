/* SPDX-License-Identifier: Apache-2.0
 *
 * See gzip_program.h. The data goes through unnamed files, so neither side can block the other.
 */
#include "tests/lib/gzip_program.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

size_t hps_gzip_program(const void *data, size_t size, uint8_t *out, size_t capacity)
{
    FILE *in = tmpfile();
    FILE *packed = tmpfile();
    assert_non_null(in);
    assert_non_null(packed);
    assert_int_equal(fwrite(data, 1, size, in), size);
    assert_int_equal(fflush(in), 0);
    assert_int_equal(fseek(in, 0, SEEK_SET), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        dup2(fileno(in), STDIN_FILENO);
        dup2(fileno(packed), STDOUT_FILENO);
        execlp("gzip", "gzip", "-9", "-n", "-c", (char *)NULL);
        _exit(127);
    }
    int status = -1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_int_equal(fseek(packed, 0, SEEK_SET), 0);
    size_t packed_size = fread(out, 1, capacity, packed);
    assert_true(packed_size < capacity);
    fclose(in);
    fclose(packed);
    return packed_size;
}
