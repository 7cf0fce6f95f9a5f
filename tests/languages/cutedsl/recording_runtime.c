/* The library that a compiled host code of CuTe DSL calls, without a GPU. It writes down each launch,
   loading and unloading. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct { int id; char pad[4]; uint32_t value[16]; } Attribute;
typedef struct { uint32_t grid[3], block[3]; size_t shared; void *stream; Attribute *attributes; uint32_t count; } Config;

static FILE *log_file(void) {
  static FILE *file;
  if (!file) {
    file = fopen(getenv("RECORDED"), "a");
    setvbuf(file, NULL, _IOLBF, 0);
  }
  return file;
}

static void numbers(FILE *file, const char *name, const uint32_t *data) {
  fprintf(file, ", \"%s\": [%u, %u, %u]", name, data[0], data[1], data[2]);
}

int _cudaLaunchKernelEx(const Config *c, void *kernel, void **parameters) {
  FILE *file = log_file();
  fprintf(file, "{\"stream\": %llu, \"shared\": %zu", (unsigned long long)(uintptr_t)c->stream, c->shared);
  for (int i = 0; i < atoi(getenv("PARAMETERS")); i++) /* the first eight bytes of each */
    fprintf(file, "%s%llu", i ? ", " : ", \"parameters\": [", (unsigned long long)*(uint64_t *)parameters[i]);
  fprintf(file, "]");
  numbers(file, "grid", c->grid);
  numbers(file, "block", c->block);
  for (uint32_t i = 0; i < c->count; i++)
    if (c->attributes[i].id == 4) /* cudaLaunchAttributeClusterDimension */
      numbers(file, "cluster", c->attributes[i].value);
  fprintf(file, "}\n");
  return 0;
}

int _cudaGetDeviceCount(int *count) { *count = 1; return 0; }
int _cudaGetDevice(int *device) { *device = 0; return 0; }
int _cudaDeviceGetAttribute(int *value, int which, int device) { *value = 232448; return 0; }
int _cuKernelGetAttribute(int *value, int which, void *kernel, int device) { *value = 0; return 0; }
int _cudaFuncSetAttribute(void *function, int which, int value) { return 0; }
int _cudaKernelSetAttributeForDevice(void *kernel, int which, int value, int device) { return 0; }
int _cudaLibraryLoadData(void **library, const void *code, ...) {
  fprintf(log_file(), "{\"library\": \"loaded\"}\n");
  *library = (void *)1;
  return 0;
}

int _cudaLibraryGetKernel(void **kernel, void *library, const char *name) { *kernel = (void *)2; return 0; }
int _cudaLibraryUnload(void *library) {
  fprintf(log_file(), "{\"library\": \"unloaded\"}\n");
  return 0;
}
