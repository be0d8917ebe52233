/* SPDX-License-Identifier: Apache-2.0
 *
 * Version and revision as the build set them.
 */
#include "server/observe/version_info.h"

const char hps_build_version[] = HPS_VERSION;
const char hps_build_revision[] = HPS_REVISION;
