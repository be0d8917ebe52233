/* SPDX-License-Identifier: Apache-2.0
 *
 * Edit distance with transpositions, on three rows of the table. Any thread.
 */
#include "base/suggest.h"

#include <ctype.h>
#include <stddef.h>
#include <string.h>
#include <strings.h>

enum { NAME_CHARS_MAX = 64, CUT_SHORT_CHARS_MIN = 2, DISTANCE_FAR = 1000 };

static unsigned lesser(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

static int lower(char c)
{
    return tolower((unsigned char)c);
}

/* Number of edits (insert, delete, replace, swap of neighbours; ignoring case) from `a` to `b`. */
static unsigned edit_distance(const char *a, const char *b)
{
    size_t n_a = strlen(a);
    size_t n_b = strlen(b);
    if (n_a > NAME_CHARS_MAX || n_b > NAME_CHARS_MAX) {
        return DISTANCE_FAR;
    }
    unsigned rows[3][NAME_CHARS_MAX + 1] = {0};
    unsigned *older = rows[0];
    unsigned *old = rows[1];
    unsigned *now = rows[2];
    for (size_t j = 0; j <= n_b; j++) {
        old[j] = (unsigned)j;
    }
    for (size_t i = 1; i <= n_a; i++) {
        now[0] = (unsigned)i;
        for (size_t j = 1; j <= n_b; j++) {
            int ca = lower(a[i - 1]);
            int cb = lower(b[j - 1]);
            unsigned edits =
                lesser(old[j - 1] + (ca == cb ? 0 : 1), lesser(old[j], now[j - 1]) + 1);
            if (i > 1 && j > 1 && ca == lower(b[j - 2]) && cb == lower(a[i - 2])) {
                edits = lesser(edits, older[j - 2] + 1);
            }
            now[j] = edits;
        }
        unsigned *spare = older;
        older = old;
        old = now;
        now = spare;
    }
    return old[n_b];
}

void hps_suggest(struct hps_suggestion *best, const char *name, const char *candidate)
{
    size_t n_name = strlen(name);
    unsigned n_candidate = (unsigned)strlen(candidate);
    unsigned distance = edit_distance(name, candidate);

    if (n_name >= CUT_SHORT_CHARS_MIN && strncasecmp(name, candidate, n_name) == 0) {
        distance = lesser(distance, 1);
    }
    if (distance <= n_candidate / 3 + 1 && distance < n_candidate &&
        (best->text == NULL || distance < best->distance)) {
        *best = (struct hps_suggestion){.text = candidate, .distance = distance};
    }
}
