/* SPDX-License-Identifier: Apache-2.0
 *
 * The google.protobuf.FileDescriptorSet of all .proto files, serialised, for gRPC reflection. The
 * build generates the array.
 */
#ifndef HPS_PROTO_DESCRIPTORS_H
#define HPS_PROTO_DESCRIPTORS_H

extern const unsigned char hps_descriptors[];
extern const unsigned long hps_descriptors_size;

#endif
