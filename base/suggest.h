/* SPDX-License-Identifier: Apache-2.0
 *
 * "Did you mean": finds the nearest name of a list to a misspelt one. Pure functions; any thread.
 */
#ifndef HPS_BASE_SUGGEST_H
#define HPS_BASE_SUGGEST_H

/* Start from zeros. */
struct hps_suggestion {
    const char *text; /* the nearest candidate so far; NULL: none is near */
    unsigned distance;
};

/* Keep `candidate` if it is nearer to `name` than the one kept, and near enough. Near enough is: at
 * most a third of its length + 1 edits, or `name` is a prefix of it with 2 or more characters.
 * Ignores case.
 * owner   the caller owns the candidates
 */
void hps_suggest(struct hps_suggestion *best, const char *name, const char *candidate);

#endif
