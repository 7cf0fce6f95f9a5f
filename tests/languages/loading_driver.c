/* A libcuda.so.1 without a GPU, for the launches of cuda-tile: it writes each cubin that is loaded into the folder
   $LOADED, and launches nothing. */
#define _GNU_SOURCE
#include <cuda.h>
#include <dlfcn.h>
#include <elf.h>
#include <stdio.h>
#include <stdlib.h>

static int loaded;

CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *a, void **b, unsigned c,
                           CUlibraryOption *d, void **e, unsigned f) {
  const Elf64_Ehdr *head = code;
  const Elf64_Shdr *section = (void *)((char *)code + head->e_shoff);
  size_t end = head->e_shoff + head->e_shnum * sizeof *section;
  if (head->e_phoff + head->e_phnum * sizeof(Elf64_Phdr) > end)
    end = head->e_phoff + head->e_phnum * sizeof(Elf64_Phdr);
  char path[4096];
  for (int i = 0; i < head->e_shnum; i++)
    if (section[i].sh_type != SHT_NOBITS && section[i].sh_offset + section[i].sh_size > end)
      end = section[i].sh_offset + section[i].sh_size;
  snprintf(path, sizeof path, "%s/%03d.cubin", getenv("LOADED"), loaded++);
  FILE *file = fopen(path, "wb");
  fwrite(code, 1, end, file);
  fclose(file);
  return *library = (CUlibrary)1, CUDA_SUCCESS;
}
CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name) {
  return *kernel = (CUkernel)1, CUDA_SUCCESS;
}
CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel) { return *function = (CUfunction)1, CUDA_SUCCESS; }
CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **parameters, void **extra) {
  return CUDA_SUCCESS;
}
CUresult cuDriverGetVersion(int *version) { return *version = 13000, CUDA_SUCCESS; }
CUresult cuDeviceGetCount(int *number) { return *number = 1, CUDA_SUCCESS; }
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute which, CUdevice device) {
  *value = which == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR ? 9 : 0;
  return CUDA_SUCCESS;
}
CUresult cuCtxGetCurrent(CUcontext *context) { return *context = (CUcontext)1, CUDA_SUCCESS; }
CUresult cuStreamGetCtx(CUstream stream, CUcontext *context) { return *context = (CUcontext)1, CUDA_SUCCESS; }
CUresult cuCtxGetId(CUcontext context, unsigned long long *id) { return *id = 1, CUDA_SUCCESS; }
CUresult cuStreamGetId(CUstream stream, unsigned long long *id) { return *id = 1, CUDA_SUCCESS; }
CUresult cuCtxGetDevice(CUdevice *device) { return *device = 0, CUDA_SUCCESS; }
CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status) {
  return *status = CU_STREAM_CAPTURE_STATUS_NONE, CUDA_SUCCESS;
}
CUresult cuPointerGetAttribute(void *value, CUpointer_attribute which, CUdeviceptr address) {
  return *(int *)value = 0, CUDA_SUCCESS;
}
static CUresult nothing(void) { return CUDA_SUCCESS; }

/* cuda-tile asks for each function here. */
CUresult cuGetProcAddress_v2(const char *name, void **function, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *status) {
  Dl_info self;
  dladdr(&loaded, &self);
  *function = dlsym(dlopen(self.dli_fname, RTLD_LAZY), name);
  if (!*function)
    *function = (void *)nothing;
  return CUDA_SUCCESS;
}
