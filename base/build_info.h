/* SPDX-License-Identifier: Apache-2.0
 *
 * Version of this build, for `--version`, the metric build_info and snapshots. Any thread.
 */
#ifndef HPS_BASE_BUILD_INFO_H
#define HPS_BASE_BUILD_INFO_H

extern const char hps_build_version[];  /* "0.2.0" */
extern const char hps_build_revision[]; /* commit of the source, or "unknown" */

#endif
