# SPDX-License-Identifier: Apache-2.0
"""proto/inference is what clients of KServe v2 and of Triton were built with: every number, name and type of it.

The table below is written by hand from what their own stubs have; the protos are read as protoc describes them.
"""
import os
import shutil
import subprocess

import pytest
from google.protobuf import descriptor_pb2

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROTO = os.path.join(ROOT, "proto")

METHODS = """ServerLive ServerReady ModelReady ServerMetadata ModelMetadata ModelInfer ModelConfig ModelStatistics
    RepositoryIndex RepositoryModelLoad RepositoryModelUnload SystemSharedMemoryStatus SystemSharedMemoryRegister
    SystemSharedMemoryUnregister CudaSharedMemoryStatus CudaSharedMemoryRegister CudaSharedMemoryUnregister TraceSetting
    """.split()
METHODS_OF_OTHER_NAMES = {
    "ModelStreamInfer": ("stream ModelInferRequest", "stream ModelStreamInferResponse"),
    "LogSettings": ("LogSettingsRequest", "LogSettingsResponse"),
}

# message: field number type, ...; "[]": repeated, "{}": a map from a string, "?name": in that oneof
MESSAGES = """
ServerLiveRequest:
ServerLiveResponse: live 1 bool
ServerReadyRequest:
ServerReadyResponse: ready 1 bool
ModelReadyRequest: name 1 string, version 2 string
ModelReadyResponse: ready 1 bool
ServerMetadataRequest:
ServerMetadataResponse: name 1 string, version 2 string, extensions 3 string[]
ModelMetadataRequest: name 1 string, version 2 string
ModelMetadataResponse: name 1 string, versions 2 string[], platform 3 string, inputs 4 TensorMetadata[],
    outputs 5 TensorMetadata[], properties 6 string{}
ModelMetadataResponse.TensorMetadata: name 1 string, datatype 2 string, shape 3 int64[]
ModelConfigRequest: name 1 string, version 2 string
ModelConfigResponse: config 1 ModelConfig
InferParameter: bool_param 1 bool?parameter_choice, int64_param 2 int64?parameter_choice,
    string_param 3 string?parameter_choice, double_param 4 double?parameter_choice,
    uint64_param 5 uint64?parameter_choice
InferTensorContents: bool_contents 1 bool[], int_contents 2 int32[], int64_contents 3 int64[], uint_contents 4 uint32[],
    uint64_contents 5 uint64[], fp32_contents 6 float[], fp64_contents 7 double[], bytes_contents 8 bytes[]
ModelInferRequest: model_name 1 string, model_version 2 string, id 3 string, parameters 4 InferParameter{},
    inputs 5 InferInputTensor[], outputs 6 InferRequestedOutputTensor[], raw_input_contents 7 bytes[]
ModelInferRequest.InferInputTensor: name 1 string, datatype 2 string, shape 3 int64[], parameters 4 InferParameter{},
    contents 5 InferTensorContents
ModelInferRequest.InferRequestedOutputTensor: name 1 string, parameters 2 InferParameter{}
ModelInferResponse: model_name 1 string, model_version 2 string, id 3 string, parameters 4 InferParameter{},
    outputs 5 InferOutputTensor[], raw_output_contents 6 bytes[]
ModelInferResponse.InferOutputTensor: name 1 string, datatype 2 string, shape 3 int64[], parameters 4 InferParameter{},
    contents 5 InferTensorContents
ModelStreamInferResponse: error_message 1 string, infer_response 2 ModelInferResponse
ModelStatisticsRequest: name 1 string, version 2 string
ModelStatisticsResponse: model_stats 1 ModelStatistics[]
ModelStatistics: name 1 string, version 2 string, last_inference 3 uint64, inference_count 4 uint64,
    execution_count 5 uint64, inference_stats 6 InferStatistics, batch_stats 7 InferBatchStatistics[],
    memory_usage 8 MemoryUsage[], response_stats 9 InferResponseStatistics{}
StatisticDuration: count 1 uint64, ns 2 uint64
InferStatistics: success 1 StatisticDuration, fail 2 StatisticDuration, queue 3 StatisticDuration,
    compute_input 4 StatisticDuration, compute_infer 5 StatisticDuration, compute_output 6 StatisticDuration,
    cache_hit 7 StatisticDuration, cache_miss 8 StatisticDuration
InferResponseStatistics: compute_infer 1 StatisticDuration, compute_output 2 StatisticDuration,
    success 3 StatisticDuration, fail 4 StatisticDuration, empty_response 5 StatisticDuration, cancel 6 StatisticDuration
InferBatchStatistics: batch_size 1 uint64, compute_input 2 StatisticDuration, compute_infer 3 StatisticDuration,
    compute_output 4 StatisticDuration
MemoryUsage: type 1 string, id 2 int64, byte_size 3 uint64
ModelRepositoryParameter: bool_param 1 bool?parameter_choice, int64_param 2 int64?parameter_choice,
    string_param 3 string?parameter_choice, bytes_param 4 bytes?parameter_choice
RepositoryIndexRequest: repository_name 1 string, ready 2 bool
RepositoryIndexResponse: models 1 ModelIndex[]
RepositoryIndexResponse.ModelIndex: name 1 string, version 2 string, state 3 string, reason 4 string
RepositoryModelLoadRequest: repository_name 1 string, model_name 2 string, parameters 3 ModelRepositoryParameter{}
RepositoryModelLoadResponse:
RepositoryModelUnloadRequest: repository_name 1 string, model_name 2 string, parameters 3 ModelRepositoryParameter{}
RepositoryModelUnloadResponse:
SystemSharedMemoryStatusRequest: name 1 string
SystemSharedMemoryStatusResponse: regions 1 RegionStatus{}
SystemSharedMemoryStatusResponse.RegionStatus: name 1 string, key 2 string, offset 3 uint64, byte_size 4 uint64
SystemSharedMemoryRegisterRequest: name 1 string, key 2 string, offset 3 uint64, byte_size 4 uint64
SystemSharedMemoryRegisterResponse:
SystemSharedMemoryUnregisterRequest: name 1 string
SystemSharedMemoryUnregisterResponse:
CudaSharedMemoryStatusRequest: name 1 string
CudaSharedMemoryStatusResponse: regions 1 RegionStatus{}
CudaSharedMemoryStatusResponse.RegionStatus: name 1 string, device_id 2 uint64, byte_size 3 uint64
CudaSharedMemoryRegisterRequest: name 1 string, raw_handle 2 bytes, device_id 3 int64, byte_size 4 uint64
CudaSharedMemoryRegisterResponse:
CudaSharedMemoryUnregisterRequest: name 1 string
CudaSharedMemoryUnregisterResponse:
TraceSettingRequest: settings 1 SettingValue{}, model_name 2 string
TraceSettingRequest.SettingValue: value 1 string[]
TraceSettingResponse: settings 1 SettingValue{}
TraceSettingResponse.SettingValue: value 1 string[]
LogSettingsRequest: settings 1 SettingValue{}
LogSettingsRequest.SettingValue: bool_param 1 bool?parameter_choice, uint32_param 2 uint32?parameter_choice,
    string_param 3 string?parameter_choice
LogSettingsResponse: settings 1 SettingValue{}
LogSettingsResponse.SettingValue: bool_param 1 bool?parameter_choice, uint32_param 2 uint32?parameter_choice,
    string_param 3 string?parameter_choice
ModelInstanceGroup: name 1 string, count 2 int32, gpus 3 int32[], kind 4 Kind
ModelInput: name 1 string, data_type 2 DataType, dims 4 int64[], is_shape_tensor 6 bool, optional 8 bool
ModelOutput: name 1 string, data_type 2 DataType, dims 3 int64[]
ModelVersionPolicy: latest 1 Latest?policy_choice, all 2 All?policy_choice, specific 3 Specific?policy_choice
ModelVersionPolicy.Latest: num_versions 1 uint32
ModelVersionPolicy.All:
ModelVersionPolicy.Specific: versions 1 int64[]
ModelParameter: string_value 1 string
ModelTransactionPolicy: decoupled 1 bool
ModelConfig: name 1 string, platform 2 string, version_policy 3 ModelVersionPolicy, max_batch_size 4 int32,
    input 5 ModelInput[], output 6 ModelOutput[], instance_group 7 ModelInstanceGroup[], parameters 14 ModelParameter{},
    backend 17 string, model_transaction_policy 19 ModelTransactionPolicy
"""

ENUMS = {
    "DataType": ["TYPE_INVALID", "TYPE_BOOL", "TYPE_UINT8", "TYPE_UINT16", "TYPE_UINT32", "TYPE_UINT64", "TYPE_INT8",
                 "TYPE_INT16", "TYPE_INT32", "TYPE_INT64", "TYPE_FP16", "TYPE_FP32", "TYPE_FP64", "TYPE_STRING",
                 "TYPE_BF16"],
    "ModelInstanceGroup.Kind": ["KIND_AUTO", "KIND_GPU", "KIND_CPU", "KIND_MODEL"],
}

FIELD = descriptor_pb2.FieldDescriptorProto


@pytest.fixture(scope="module", name="files")
def described(tmp_path_factory):
    if shutil.which("protoc") is None:
        pytest.fail("protoc is missing: apt-get install protobuf-compiler")
    out = tmp_path_factory.mktemp("kserve") / "set"
    subprocess.run(["protoc", f"-I{PROTO}", f"--descriptor_set_out={out}", "--include_imports",
                    "inference/grpc_service.proto"], check=True)
    return descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file


def type_of(field, message):
    if field.type_name:
        short = field.type_name.rpartition(".")[2]
        entry = next((one for one in message.nested_type if one.name == short and one.options.map_entry), None)
        if entry is not None:
            key, value = entry.field
            assert (key.number, key.type, value.number) == (1, FIELD.TYPE_STRING, 2)
            return type_of(value, entry) + "{}"
    else:
        short = FIELD.Type.Name(field.type).replace("TYPE_", "").lower()
    choice = "?" + message.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else ""
    return short + choice + ("[]" if field.label == FIELD.LABEL_REPEATED else "")


def fields_of(messages, prefix=""):
    found = {}
    for message in messages:
        if message.options.map_entry:
            continue
        name = prefix + message.name
        found[name] = {field.name: (field.number, type_of(field, message)) for field in message.field}
        found |= fields_of(message.nested_type, name + ".")
    return found


def table():
    found = {}
    for line in MESSAGES.strip().replace("\n    ", " ").split("\n"):
        name, _, fields = line.partition(":")
        found[name] = {}
        for field in filter(None, fields.split(",")):
            label, number, kind = field.split()
            found[name][label] = (int(number), kind)
    return found


def test_kserve_proto_when_described_then_messages_are_those_of_the_table(files):
    found = {}
    for file in files:
        assert (file.package, file.syntax) == ("inference", "proto3")
        found |= fields_of(file.message_type)
    wanted = table()
    assert found.keys() == wanted.keys()
    for name, fields in wanted.items():
        assert found[name] == fields, name


def test_kserve_proto_when_described_then_the_service_has_the_twenty_methods(files):
    service, = [service for file in files for service in file.service]
    assert service.name == "GRPCInferenceService"
    found = {}
    for method in service.method:
        package, _, request = method.input_type[1:].partition(".")
        reply = method.output_type.partition("inference.")[2]
        assert package == "inference"
        found[method.name] = ("stream " * method.client_streaming + request, "stream " * method.server_streaming + reply)
    wanted = {name: (name + "Request", name + "Response") for name in METHODS} | METHODS_OF_OTHER_NAMES
    assert len(wanted) == 20 and found == wanted


def test_kserve_proto_when_described_then_enums_have_the_numbers_of_the_table(files):
    enums = {enum.name: enum for file in files for enum in file.enum_type}
    for file in files:
        for message in file.message_type:
            enums |= {f"{message.name}.{enum.name}": enum for enum in message.enum_type}
    assert enums.keys() == ENUMS.keys()
    for name, values in ENUMS.items():
        assert [(value.name, value.number) for value in enums[name].value] == [(v, n) for n, v in enumerate(values)]
