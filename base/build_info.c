/* SPDX-License-Identifier: Apache-2.0
 *
 * Version and revision as the build set them.
 */
#include "base/build_info.h"

#ifndef HPS_VERSION /* a part of the sources built on its own, as on a machine with a GPU */
#define HPS_VERSION  "unknown"
#define HPS_REVISION "unknown"
#endif

const char hps_build_version[] = HPS_VERSION;
const char hps_build_revision[] = HPS_REVISION;
