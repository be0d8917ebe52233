/* SPDX-License-Identifier: Apache-2.0
 *
 * Assertions about the program itself: preconditions, owners, lock ranks. Never assert about input:
 * peers, files or available memory. HPS_ASSERT is active in every build. HPS_DEBUG_ASSERT is active
 * only in debug and sanitizer builds. It is for checks that cost O(n) or that run very often.
 */
#ifndef HPS_BASE_ASSERT_H
#define HPS_BASE_ASSERT_H

/* Print file, line and expression to stderr, then abort. Unit tests replace this by cmocka's
 * mock_assert (hps_assert_hook). */
__attribute__((noreturn)) void hps_assert_failed(const char *expr, const char *file, int line);

#define HPS_ASSERT(expr) ((expr) ? (void)0 : hps_assert_failed(#expr, __FILE__, __LINE__))
#ifdef HPS_DEBUG
#define HPS_DEBUG_ASSERT(expr) HPS_ASSERT(expr)
#else
#define HPS_DEBUG_ASSERT(expr) ((void)sizeof(!(expr)))
#endif
/* Evaluates `check` in debug and sanitizer builds only. `check` is a call of a function
 * `<struct>_sane()`, which asserts the invariants of a struct. */
#define HPS_DEBUG_SANE(check) HPS_DEBUG_ASSERT(((check), 1))

/* Replace the action of a failed assertion (tests only); NULL restores abort(). `hook` must not
 * return. */
void hps_assert_hook(void (*hook)(const char *expr, const char *file, int line));

#endif
