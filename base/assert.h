/* SPDX-License-Identifier: Apache-2.0
 *
 * Assertions about ourselves: preconditions, owners, lock ranks. Never about peers, files or
 * memory. HPS_ASSERT is on in every build; HPS_DEBUG_ASSERT in debug and sanitizer builds alone,
 * for checks that cost O(n) or stand on a path that every call takes.
 */
#ifndef HPS_BASE_ASSERT_H
#define HPS_BASE_ASSERT_H

/* Print file, line and expression to stderr and abort; under unit tests, cmocka's mock_assert. */
__attribute__((noreturn)) void hps_assert_failed(const char *expr, const char *file, int line);

#define HPS_ASSERT(expr) ((expr) ? (void)0 : hps_assert_failed(#expr, __FILE__, __LINE__))
#ifdef HPS_DEBUG
#define HPS_DEBUG_ASSERT(expr) HPS_ASSERT(expr)
#else
#define HPS_DEBUG_ASSERT(expr) ((void)sizeof(!(expr)))
#endif
/* For `<struct>_sane()` at the end of turns that come millions of times a second: its assertions
 * are made in debug and sanitizer builds. */
#define HPS_DEBUG_SANE(check) HPS_DEBUG_ASSERT(((check), 1))

/* Replace what a failed assertion does (tests only); NULL restores abort(). `hook` must not return.
 */
void hps_assert_hook(void (*hook)(const char *expr, const char *file, int line));

#endif
