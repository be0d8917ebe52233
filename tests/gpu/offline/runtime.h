/* SPDX-License-Identifier: Apache-2.0
 *
 * A stand-in for the CUDA runtime: the calls that cuda.cu makes, over one simulated device. Misuse
 * ends the process with a message: a second free, a stream that was destroyed, a launch with
 * another block size than the kernel was declared with.
 *
 * Thread: one.
 */
#ifndef HPS_TESTS_GPU_OFFLINE_RUNTIME_H
#define HPS_TESTS_GPU_OFFLINE_RUNTIME_H

#include <stdbool.h>
#include <stddef.h>

/* From the call of this number on (from 1; 0: never) every call answers with a sticky error, and
 * the device does nothing more. set_device: cudaSetDevice, too; a driver may answer either way. */
void runtime_fail_at(unsigned n, bool set_device);
/* Calls so far. */
unsigned runtime_calls(void);
/* Allocations, registrations, streams and events that have not been freed. */
size_t runtime_left(void);

#endif
