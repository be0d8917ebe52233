/* SPDX-License-Identifier: Apache-2.0
 *
 * "Did you mean": finds the nearest name of a list to a misspelt one. Pure functions; any thread.
 */
#ifndef HPS_BASE_SUGGEST_H
#define HPS_BASE_SUGGEST_H

/* The best candidate so far. Zero it before the first candidate. */
struct hps_suggestion {
    const char *text;  /* borrowed; NULL: no candidate is near */
    unsigned distance; /* edits between name and `text`; at most 1 if `text` begins with name */
};

/* Store `candidate` in `best` if it is near to `name`, and nearer than the stored candidate. A
 * candidate of L characters is near if at most L / 3 + 1 edits, and fewer than L, change `name`
 * into it. A candidate that begins with `name` is also near if `name` has 2 or more characters.
 * Ignores case.
 * owner   the caller owns the candidates
 */
void hps_suggest(struct hps_suggestion *best, const char *name, const char *candidate);

#endif
