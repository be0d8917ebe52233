/* SPDX-License-Identifier: Apache-2.0
 *
 * How much a test does that repeats itself, decided at one place: under a sanitizer a step takes
 * many times as long, and repetition shows it no more. Any thread.
 */
#ifndef HPS_TESTS_LIB_WORK_H
#define HPS_TESTS_LIB_WORK_H

#if defined(HPS_TSAN)
#define HPS_TEST_WORK(n) ((n) / 10)
#elif defined(__SANITIZE_ADDRESS__)
#define HPS_TEST_WORK(n) ((n) / 4)
#else
#define HPS_TEST_WORK(n) (n)
#endif

#endif
