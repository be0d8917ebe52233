/* SPDX-License-Identifier: Apache-2.0
 *
 * A directory of a test's own under $TMPDIR or /tmp, with helpers to put files there. Failures fail
 * the test. One thread.
 */
#ifndef HPS_TESTS_LIB_TMPDIR_H
#define HPS_TESTS_LIB_TMPDIR_H

#include <stddef.h>

enum { HPS_TMPDIR_PATH_MAX = 512 };

struct hps_tmpdir {
    char path[HPS_TMPDIR_PATH_MAX];
    char joined[4][HPS_TMPDIR_PATH_MAX];
    unsigned n_joined;
};

void hps_tmpdir_open(struct hps_tmpdir *dir);
void hps_tmpdir_close(struct hps_tmpdir *dir); /* removes the directory and everything in it */
/* "<path>/<name>"; the text is valid until the fourth call after this one. */
const char *hps_tmpdir_join(struct hps_tmpdir *dir, const char *name);
void hps_tmpdir_write(struct hps_tmpdir *dir, const char *name, const void *data, size_t size);
void hps_tmpdir_mkdir(struct hps_tmpdir *dir, const char *name);
void hps_tmpdir_remove(struct hps_tmpdir *dir, const char *name);    /* with everything in it */
size_t hps_tmpdir_entries(struct hps_tmpdir *dir, const char *name); /* hidden ones too */

#endif
