/* A libcuda.so.1 without a GPU. It writes down each launch, so that launchers can be compared byte by byte.
   `recorded_sizes` gives the sizes of the next kernel's parameters, which a driver reads from the cubin. */
#define _GNU_SOURCE
#include <cuda.h>
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static unsigned sizes[256], count;

void recorded_sizes(unsigned number, const unsigned *given) {
  memcpy(sizes, given, number * sizeof(unsigned));
  count = number;
}

static FILE *log_file(void) {
  static FILE *file;
  if (!file) {
    file = fopen(getenv("RECORDED"), "a");
    setvbuf(file, NULL, _IOLBF, 0);
  }
  return file;
}

static void hex(FILE *file, const void *data, unsigned size) {
  for (unsigned i = 0; i < size; i++)
    fprintf(file, "%02x", ((const uint8_t *)data)[i]);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction f, void **parameters, void **extra) {
  FILE *file = log_file();
  fprintf(file, "{\"grid\": [%u, %u, %u], \"block\": [%u, %u, %u], \"shared\": %u, \"stream\": %llu, \"attributes\": [",
          c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX, c->blockDimY, c->blockDimZ, c->sharedMemBytes,
          (unsigned long long)(uintptr_t)c->hStream);
  for (unsigned i = 0; i < c->numAttrs; i++) {
    const CUlaunchAttribute *a = &c->attrs[i];
    unsigned used = a->id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION ? 12 : 4;
    fprintf(file, "%s[%d, \"", i ? ", " : "", (int)a->id);
    hex(file, &a->value, used);
    fprintf(file, "\"]");
  }
  fprintf(file, "], \"parameters\": [");
  for (unsigned i = 0; i < count; i++) {
    fprintf(file, "%s\"", i ? ", " : "");
    hex(file, parameters[i], sizes[i]);
    fprintf(file, "\"");
  }
  fprintf(file, "]}\n");
  return CUDA_SUCCESS;
}

/* The tensor map becomes a list of the arguments. */
CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                                const cuuint64_t *extents, const cuuint64_t *strides, const cuuint32_t *box,
                                const cuuint32_t *steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  uint8_t *to = (uint8_t *)map;
  uint8_t few[8] = {type, rank, interleave, swizzle, promotion, fill, (uint8_t)steps[0], (uint8_t)steps[rank - 1]};
  if ((uintptr_t)map % 64)
    return CUDA_ERROR_INVALID_VALUE;
  memset(to, 0, 128);
  memcpy(to, few, 8);
  memcpy(to + 8, &address, 8);
  memcpy(to + 16, extents, 8 * rank);
  memcpy(to + 56, strides, 8 * (rank - 1));
  memcpy(to + 88, box, 4 * rank);
  return CUDA_SUCCESS;
}

static CUresult told(const char *what, int attribute, int value) {
  fprintf(log_file(), "{\"%s\": [%d, %d]}\n", what, attribute, value);
  return CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction f, CUfunction_attribute which, int value) {
  /* Drivers of 2026 do not know attribute 17, the mode for oversized shared memory. */
  return (int)which == 17 ? CUDA_ERROR_INVALID_VALUE : told("attribute", which, value);
}
CUresult cuFuncSetCacheConfig(CUfunction f, CUfunc_cache which) { return told("cache", which, 0); }

CUresult cuInit(unsigned flags) { return CUDA_SUCCESS; }
CUresult cuDriverGetVersion(int *version) { return *version = atoi(getenv("RECORDED_VERSION")), CUDA_SUCCESS; }
CUresult cuDeviceGetCount(int *number) { return *number = 1, CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice *device, int ordinal) { return *device = 0, CUDA_SUCCESS; }
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute which, CUdevice device) {
  return *value = 232448, CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
  return *context = (CUcontext)1, CUDA_SUCCESS;
}
CUresult cuCtxGetCurrent(CUcontext *context) { return *context = (CUcontext)1, CUDA_SUCCESS; }
CUresult cuCtxSetCurrent(CUcontext context) { return CUDA_SUCCESS; }
CUresult cuCtxGetDevice(CUdevice *device) { return *device = 0, CUDA_SUCCESS; }
CUresult cuCtxGetLimit(size_t *value, CUlimit limit) { return *value = 0, CUDA_SUCCESS; }
CUresult cuCtxSetLimit(CUlimit limit, size_t value) { return CUDA_SUCCESS; }
CUresult cuModuleLoadData(CUmodule *module, const void *image) { return *module = (CUmodule)1, CUDA_SUCCESS; }
CUresult cuModuleUnload(CUmodule module) { return CUDA_SUCCESS; }
CUresult cuModuleGetFunction(CUfunction *f, CUmodule module, const char *name) {
  return *f = (CUfunction)1, CUDA_SUCCESS;
}
CUresult cuFuncGetAttribute(int *value, CUfunction_attribute which, CUfunction f) {
  return *value = which == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0, CUDA_SUCCESS;
}
CUresult cuPointerGetAttribute(void *value, CUpointer_attribute which, CUdeviceptr address) {
  return *(CUdeviceptr *)value = address, CUDA_SUCCESS;
}
CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status) {
  return *status = CU_STREAM_CAPTURE_STATUS_NONE, CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult error, const char **text) { return *text = "refused", CUDA_SUCCESS; }
CUresult cuOccupancyMaxActiveClusters(int *number, CUfunction f, const CUlaunchConfig *config) {
  return *number = 1, CUDA_SUCCESS;
}

CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *a, void **b, unsigned c,
                           CUlibraryOption *d, void **e, unsigned f) {
  return *library = (CUlibrary)1, CUDA_SUCCESS;
}
CUresult cuLibraryUnload(CUlibrary library) { return CUDA_SUCCESS; }
CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name) {
  return *kernel = (CUkernel)1, CUDA_SUCCESS;
}
CUresult cuKernelSetAttribute(CUfunction_attribute which, int value, CUkernel kernel, CUdevice device) {
  return told("attribute", which, value);
}
CUresult cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache which, CUdevice device) { return told("cache", which, 0); }

/* cuda-bindings asks for each function here. */
CUresult cuGetProcAddress_v2(const char *name, void **function, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *status) {
  Dl_info self;
  dladdr(&sizes, &self);
  *function = dlsym(dlopen(self.dli_fname, RTLD_LAZY), name);
  return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
