/* SPDX-License-Identifier: Apache-2.0
 *
 * Which version this build is of: what `--version`, the metric build_info and snapshots say. Any
 * thread.
 */
#ifndef HPS_BASE_BUILD_INFO_H
#define HPS_BASE_BUILD_INFO_H

extern const char hps_build_version[];  /* "0.1.0" */
extern const char hps_build_revision[]; /* of the source, or "unknown" */

#endif
