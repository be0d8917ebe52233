/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory and CPUs that the machine and the control groups allow this process to use. Any thread.
 */
#ifndef HPS_CONFIG_LIMITS_H
#define HPS_CONFIG_LIMITS_H

#include <stdint.h>

/* Bytes of memory that this process may use: the minimum of the RAM and the limits of its cgroup
 * and all parent cgroups. Never 0. */
uint64_t hps_limits_memory_bytes(void);
/* Number of CPUs that this process may use: the minimum of the CPUs in its affinity mask and the
 * CPU quotas of its cgroup and all parent cgroups. Quotas are rounded up. Never 0. */
uint32_t hps_limits_cpus(void);

/* For tests: like the functions above, but with files below `root` instead of "/". */
uint64_t hps_limits_memory_bytes_at(const char *root);
uint32_t hps_limits_cpus_at(const char *root);

#endif
