/* A libcuda.so.1 whose device is the memory of this process. Work runs at once, except under capture: there it is
   listed, and a graph repeats it. A kernel is one of the functions below, found by its name. Its parameters are x, y and
   the number of floats. */
#define _GNU_SOURCE
#include <cuda.h>
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef void Kernel(float *x, float *y, int n);

static void doubles(float *x, float *y, int n) {
  for (int i = 0; i < n; i++)
    y[i] = 2 * x[i];
}
static void doubles_slowly(float *x, float *y, int n) {
  for (int turn = 0; turn < 50; turn++)
    for (int i = 0; i < n; i++)
      ((volatile float *)y)[i] = 2 * x[i];
}
static void leaves_the_last(float *x, float *y, int n) { doubles(x, y, n - 1); }
static void writes_outside(float *x, float *y, int n) { doubles(x, y, n), y[n] = 1; }
static void changes_its_input(float *x, float *y, int n) { doubles(x, y, n), x[n / 2] += 1; }
static void doubles_half(float *x, float *y, int n) { doubles(x, y, n / 2); }
/* Slow, unless its answer is already there. */
static void finds_its_answer(float *x, float *y, int n) {
  if (y[0] != 2 * x[0] || y[n - 1] != 2 * x[n - 1])
    doubles_slowly(x, y, n);
}

static struct {
  const char *name;
  Kernel *run;
} kernels[] = {{"doubles", doubles},
               {"doubles_slowly", doubles_slowly},
               {"leaves_the_last", leaves_the_last},
               {"writes_outside", writes_outside},
               {"changes_its_input", changes_its_input},
               {"doubles_half", doubles_half},
               {"finds_its_answer", finds_its_answer}};

enum What { FILL, COPY, LAUNCH, RECORD };
struct Work {
  enum What what;
  void *to, *from;
  size_t bytes;
  int byte;
  Kernel *kernel;
};
struct List {
  struct Work work[16];
  int count;
};
static struct List *capturing;
static size_t held;
static const size_t TOTAL = (size_t)1 << 30;

static void ran(struct Work *w) {
  struct timespec now;
  if (w->what == FILL)
    memset(w->to, w->byte, w->bytes);
  if (w->what == COPY)
    memcpy(w->to, w->from, w->bytes);
  if (w->what == LAUNCH)
    w->kernel(w->from, w->to, (int)w->bytes);
  if (w->what == RECORD) {
    clock_gettime(CLOCK_MONOTONIC, &now);
    *(double *)w->to = now.tv_sec * 1e3 + now.tv_nsec / 1e6;
  }
}
static CUresult queued(struct Work w) {
  if (!capturing)
    return ran(&w), CUDA_SUCCESS;
  if (capturing->count == 16)
    return CUDA_ERROR_OUT_OF_MEMORY;
  return capturing->work[capturing->count++] = w, CUDA_SUCCESS;
}

/* Memory */
CUresult cuMemAlloc(CUdeviceptr *address, size_t bytes) {
  void *memory;
  if (held + bytes > TOTAL || posix_memalign(&memory, 512, bytes + sizeof(size_t) + 512))
    return CUDA_ERROR_OUT_OF_MEMORY;
  *(size_t *)memory = bytes;
  held += bytes;
  return *address = (CUdeviceptr)memory + 512, CUDA_SUCCESS;
}
CUresult cuMemFree(CUdeviceptr address) {
  held -= *(size_t *)(address - 512);
  return free((void *)(address - 512)), CUDA_SUCCESS;
}
CUresult cuMemGetInfo(size_t *left, size_t *total) { return *left = TOTAL - held, *total = TOTAL, CUDA_SUCCESS; }
CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char byte, size_t bytes, CUstream stream) {
  return queued((struct Work){FILL, (void *)to, 0, bytes, byte});
}
CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return queued((struct Work){COPY, (void *)to, (void *)from, bytes});
}
CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) {
  return queued((struct Work){COPY, (void *)to, (void *)from, bytes});
}
CUresult cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return queued((struct Work){COPY, to, (void *)from, bytes});
}

/* Streams, events and graphs */
CUresult cuStreamCreate(CUstream *stream, unsigned flags) { return *stream = (CUstream)77, CUDA_SUCCESS; }
CUresult cuStreamDestroy(CUstream stream) { return CUDA_SUCCESS; }
CUresult cuStreamSynchronize(CUstream stream) { return capturing ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS; }
CUresult cuCtxSynchronize(void) { return capturing ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS; }
CUresult cuEventCreate(CUevent *event, unsigned flags) { return *event = calloc(1, sizeof(double)), CUDA_SUCCESS; }
CUresult cuEventDestroy(CUevent event) { return free(event), CUDA_SUCCESS; }
CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags) {
  if ((capturing != 0) != (flags == CU_EVENT_RECORD_EXTERNAL)) /* else its time cannot be read, or the call is invalid */
    return CUDA_ERROR_INVALID_VALUE;
  return queued((struct Work){RECORD, event});
}
CUresult cuEventElapsedTime(float *ms, CUevent start, CUevent end) {
  return *ms = (float)(*(double *)end - *(double *)start), CUDA_SUCCESS;
}
CUresult cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode) {
  return capturing = calloc(1, sizeof *capturing), CUDA_SUCCESS;
}
CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) {
  *graph = (CUgraph)capturing;
  return capturing = 0, CUDA_SUCCESS;
}
CUresult cuGraphInstantiateWithFlags(CUgraphExec *graph, CUgraph captured, unsigned long long flags) {
  *graph = malloc(sizeof(struct List));
  return memcpy(*graph, captured, sizeof(struct List)), CUDA_SUCCESS;
}
CUresult cuGraphDestroy(CUgraph graph) { return free(graph), CUDA_SUCCESS; }
CUresult cuGraphExecDestroy(CUgraphExec graph) { return free(graph), CUDA_SUCCESS; }
CUresult cuGraphLaunch(CUgraphExec graph, CUstream stream) {
  struct List *list = (struct List *)graph;
  for (int i = 0; i < list->count; i++)
    ran(&list->work[i]);
  return CUDA_SUCCESS;
}

/* Kernels */
CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *a, void **b, unsigned c,
                           CUlibraryOption *d, void **e, unsigned f) {
  return *library = (CUlibrary)1, CUDA_SUCCESS;
}
CUresult cuLibraryUnload(CUlibrary library) { return CUDA_SUCCESS; }
CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name) {
  for (unsigned i = 0; i < sizeof kernels / sizeof *kernels; i++)
    if (!strcmp(kernels[i].name, name))
      return *kernel = (CUkernel)kernels[i].run, CUDA_SUCCESS;
  return CUDA_ERROR_NOT_FOUND;
}
CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                        unsigned shared, CUstream stream, void **parameters, void **extra) {
  return queued((struct Work){LAUNCH, *(void **)parameters[1], *(void **)parameters[0], *(int *)parameters[2], 0,
                              (Kernel *)f});
}
CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **parameters, void **extra) {
  return cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, config->hStream, parameters, extra);
}

/* The device */
CUresult cuInit(unsigned flags) { return CUDA_SUCCESS; }
CUresult cuDriverGetVersion(int *version) { return *version = 13000, CUDA_SUCCESS; }
CUresult cuDeviceGetCount(int *number) { return *number = 1, CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice *device, int ordinal) { return *device = 0, CUDA_SUCCESS; }
CUresult cuDeviceGetName(char *name, int size, CUdevice device) { return strncpy(name, "NVIDIA H200", size), CUDA_SUCCESS; }
CUresult cuDeviceTotalMem(size_t *bytes, CUdevice device) { return *bytes = TOTAL, CUDA_SUCCESS; }
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute which, CUdevice device) {
  *value = which == 16 ? 132 : which == 38 ? 1 << 16 : which == 75 ? 9 : 0;
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) { return *context = (CUcontext)1, CUDA_SUCCESS; }
static _Thread_local CUcontext current;
CUresult cuCtxSetCurrent(CUcontext context) { return current = context, CUDA_SUCCESS; }
CUresult cuCtxGetCurrent(CUcontext *context) { return *context = current, CUDA_SUCCESS; }
CUresult cuCtxGetDevice(CUdevice *device) { return *device = 0, current ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT; }

/* cuda-bindings asks for each function here. Newer forms of a function have the same parameters. */
CUresult cuGetProcAddress_v2(const char *name, void **function, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *status) {
  Dl_info self;
  char newer[128];
  dladdr(&TOTAL, &self);
  void *library = dlopen(self.dli_fname, RTLD_LAZY);
  *function = dlsym(library, strcat(strcpy(newer, name), "_v2"));
  if (!*function)
    *function = dlsym(library, name);
  if (!*function)
    *function = dlsym(library, strcat(strcpy(newer, name), "WithFlags"));
  return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
