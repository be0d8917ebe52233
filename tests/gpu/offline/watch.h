/* SPDX-License-Identifier: Apache-2.0
 *
 * A load through the non-coherent cache (ld.global.nc) may return old bytes if the same launch
 * writes them. Every such load and every store of a launch is noted here. The first byte with both
 * ends the process with a message.
 *
 * Thread: the stream's, which runs the launch. Each thread has its own table.
 */
#ifndef HPS_TESTS_GPU_OFFLINE_WATCH_H
#define HPS_TESTS_GPU_OFFLINE_WATCH_H

#include <stdint.h>

enum watch_access { WATCH_LOAD, WATCH_LOAD_NC, WATCH_STORE };

/* line: of the PTX file. Loads that are coherent are not noted. */
void watch_note(uint64_t address, unsigned bytes, enum watch_access access, int line);
/* A launch begins. kernel: its name, borrowed until the next launch. */
void watch_launch(const char *kernel);

#endif
