/* SPDX-License-Identifier: Apache-2.0
 *
 * A heap that counts, and that fails the allocation it is told to, so that a test can walk every
 * out-of-memory path of a piece of code. One test at a time; the code under test may be threaded.
 */
#ifndef HPS_TESTS_LIB_FAULT_HEAP_H
#define HPS_TESTS_LIB_FAULT_HEAP_H

#include <stdbool.h>
#include <stddef.h>

/* Take over the heap; the `fail_at`-th allocation from now on (from 1; 0: none) gives NULL. */
void hps_fault_heap_install(size_t fail_at);
/* While it starves, no allocation of the calling thread succeeds. */
void hps_fault_heap_starve(bool starves);
/* Give libc's heap back. Everything allocated since install must have been freed. */
void hps_fault_heap_remove(void);
size_t hps_fault_heap_allocations(void); /* attempts since install */
size_t hps_fault_heap_live(void);        /* allocated and not freed */
size_t hps_fault_heap_live_bytes(void);  /* the same in bytes, as malloc rounds them */

/* Of many allocations ThreadSanitizer has one in five fail: it looks for races, and a run takes ten
 * times as long. */
#ifdef HPS_TSAN
enum { HPS_FAULT_HEAP_STEP = 5, HPS_FAULT_HEAP_MANY = 100 };
#else
enum { HPS_FAULT_HEAP_STEP = 1, HPS_FAULT_HEAP_MANY = 100 };
#endif

/* Run `scenario` once to count its allocations, then once for each of them with that one failing.
 * The scenario must survive and free everything; a leak fails the test. Returns the number of
 * allocations. */
size_t hps_fault_heap_run(void (*scenario)(void *ctx), void *ctx);

#endif
