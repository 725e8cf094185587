/* Vitrum for C and everything that can call C: load a model, classify images, get features.
 *
 * Every function that can fail returns a vitrum_status; vitrum_last_error() then says in one line
 * what was wrong. Link with libvitrum_c, which exports nothing but what is here. C99 or C++98.
 *
 * Threads. A model may be used from several threads at once; the model itself takes one call after
 * the other, and uses all its own threads for it. Images are decoded in the thread that calls,
 * those of one call of several on threads of the call. vitrum_free() is for one thread, when no
 * other is in a call. Texts of errors belong to the thread that made the call. A process made by
 * fork() may not use a model of its parent (its threads did not come along): every call says so,
 * and vitrum_free() does nothing there.
 *
 * Versions. Nothing is removed as long as the library's name (libvitrum_c.so.0) stays. Structs only
 * grow, at the end: those that open with their size say which members the caller knew, and an array
 * of structs comes with the size of one. What an older caller did not know has its default.
 */
#ifndef VITRUM_H
#define VITRUM_H
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define VITRUM_API __attribute__((visibility("default")))
#else
#define VITRUM_API
#endif

/* The numbers are the exit codes of the vitrum binary. */
typedef enum vitrum_status {
  VITRUM_OK = 0,
  VITRUM_FAILED = 1,
  VITRUM_USAGE = 2,    /* an argument that makes no sense */
  VITRUM_INPUT = 3,    /* a file, model or image that cannot be used */
  VITRUM_EXHAUSTED = 4 /* out of memory */
} vitrum_status;

/* VITRUM_AUTO: what suits the device, f32 on a CPU and bf16 on a card; a model that `vitrum
   quantize` wrote computes in VITRUM_INT8 on a CPU, or in VITRUM_FP8 on a card of compute
   capability 9.0. */
typedef enum vitrum_precision {
  VITRUM_F32 = 0,
  VITRUM_BF16 = 1,
  VITRUM_AUTO = 2,
  VITRUM_INT8 = 3,
  VITRUM_FP8 = 4
} vitrum_precision;

typedef struct vitrum_model vitrum_model;

/* Start with VITRUM_OPTIONS_INIT and set what differs. */
typedef struct vitrum_options {
  size_t size;              /* of this struct, as the caller was compiled */
  const char* arch;         /* what a bare weight file is for, or NULL */
  const char* device;       /* "auto", "cpu", ..., or NULL for auto */
  int32_t threads;          /* 0: every core this process may use */
  int32_t precision;        /* a vitrum_precision */
  int32_t exif_orientation; /* not 0: turn photos upright, which timm and others do not do */
  int32_t reserved;         /* nothing is read here: older callers have padding in its place */
  int32_t image_height;     /* other than the model's own: positions are resampled; 0: its own */
  int32_t image_width;      /* likewise, both or neither */
  int32_t max_batch;        /* images computed at once, at most; 0: 16. A CPU computes fewer */
  int32_t coalesce;         /* not 0: images of calls that overlap are computed together */
  int64_t max_pixels;       /* a photo with more is refused; 0: 178,956,970 */
} vitrum_options;
#define VITRUM_OPTIONS_INIT \
  { sizeof(vitrum_options), NULL, NULL, 0, VITRUM_AUTO, 0, 0, 0, 0, 0, 0, 0 }

typedef struct vitrum_prediction {
  const char* label; /* the model's, or the index as text; valid as long as the model */
  int32_t index;     /* of the class */
  float probability;
} vitrum_prediction;

/* 8-bit pixels, row by row, interleaved: 1 channel is grey, 3 are RGB, 4 RGBA (alpha is ignored).
 */
typedef struct vitrum_image {
  const uint8_t* pixels;
  int32_t width, height, channels;
  size_t stride; /* bytes from one row to the next; 0: width * channels */
} vitrum_image;

/* What an image comes as. */
typedef enum vitrum_source {
  VITRUM_FROM_FILE = 0,  /* data: the path, which ends in a zero byte */
  VITRUM_FROM_BYTES = 1, /* data: the file's bytes, `bytes` of them */
  VITRUM_FROM_PIXELS =
      2, /* data: pixels as in vitrum_image, with width, height, channels, stride */
  VITRUM_FROM_PLANES =
      3, /* data: 8-bit (C, H, W) of the model's size, resized and cropped already */
  VITRUM_FROM_FLOATS = 4 /* data: float (C, H, W) of the model's size, normalised already */
} vitrum_source;

/* Start with zeros and set what the source needs. */
typedef struct vitrum_input {
  int32_t source;                  /* of vitrum_source */
  int32_t width, height, channels; /* of pixels */
  const void* data;
  size_t
      bytes; /* of a file's bytes; of planes and floats too, where they are checked; 0: as needed */
  size_t stride; /* of pixels: bytes from one row to the next; 0: width * channels */
} vitrum_input;

/* A tensor somewhere: from `data` to `byte_offset` the members are those of DLPack's DLTensor, in
 * its order, so that one can be copied here in one piece. */
typedef struct vitrum_tensor {
  size_t size; /* of this struct, as the caller was compiled */
  void* data;
  int32_t device_type; /* 1: the CPU's memory, 2: CUDA's, 3: CUDA's, pinned on the host */
  int32_t device_id;
  int32_t ndim;
  uint8_t type_code; /* 1: unsigned, 2: float */
  uint8_t type_bits;
  uint16_t type_lanes; /* 1 */
  const int64_t* shape;
  const int64_t* strides; /* in elements; NULL: row by row */
  uint64_t byte_offset;   /* from `data` to the first element */
  void* stream;           /* CUDA: the stream that fills or reads it; NULL: the default one */
} vitrum_tensor;
#define VITRUM_TENSOR_INIT \
  { sizeof(vitrum_tensor), NULL, 1, 0, 0, 2, 32, 1, NULL, NULL, 0, NULL }

VITRUM_API const char* vitrum_version(void);

/* What went wrong in the last call of this thread that failed; "" before. Valid until the next
 * call. */
VITRUM_API const char* vitrum_last_error(void);

/* A model directory, or a weight file where options->arch says of what. `options` may be NULL. */
VITRUM_API vitrum_status vitrum_load(const char* path, const vitrum_options* options,
                                     vitrum_model** model);
VITRUM_API void vitrum_free(vitrum_model* model); /* NULL is fine */

VITRUM_API int32_t vitrum_classes(const vitrum_model* model);   /* 0: the model has no head */
VITRUM_API int32_t vitrum_dimension(const vitrum_model* model); /* of the features */
VITRUM_API const char* vitrum_label(const vitrum_model* model,
                                    int32_t index); /* NULL: no such class */

/* The model and how it runs, as a JSON object: path, architecture, parameters, classes, dimension,
 * channels, height, width, mean, std, interpolation, crop_pct, precision, device, threads,
 * max_batch and labels (empty: it has none). Valid as long as the model. */
VITRUM_API const char* vitrum_info(const vitrum_model* model);

/* Any number of images at once. `input_size` is sizeof(vitrum_input). Logits (count,
 * vitrum_classes()), features (count, vitrum_dimension()), `each` (count); NULL: not wanted. One
 * that cannot be used spoils nothing but its own rows, which are NaN then, and its status in
 * `each`: VITRUM_OK is returned where there are none of those, or else the status of the first. */
VITRUM_API vitrum_status vitrum_predict(vitrum_model* model, const vitrum_input* inputs,
                                        size_t input_size, size_t count, float* logits,
                                        float* features, vitrum_status* each);
/* What was wrong with input `i` of the last vitrum_predict() of this thread with this model; "":
 * nothing. Valid until the next. */
VITRUM_API const char* vitrum_input_error(const vitrum_model* model, size_t i);

/* (N, C, H, W) of the model's size, as VITRUM_FROM_PLANES or VITRUM_FROM_FLOATS have them, to
 * logits (N, vitrum_classes()) and features (N, vitrum_dimension()), which are float, row by row,
 * and may be NULL: not wanted. On the CPU the images have any strides that are not negative.
 * Tensors in CUDA's memory need a model on that card; they are copied on it, behind what their
 * stream was given before, and the answers are there when this returns. */
VITRUM_API vitrum_status vitrum_predict_tensor(vitrum_model* model, const vitrum_tensor* images,
                                               vitrum_tensor* logits, vitrum_tensor* features);

/* The `k` most probable of `n` logits, the best first, to `index` and `probability` (NULL: not
 * wanted). Returns how many there are, min(n, k); -1 where an argument makes no sense. */
VITRUM_API int32_t vitrum_top(const float* logits, int32_t n, int32_t k, int32_t* index,
                              float* probability);

/* The most probable classes, the best first: at most `capacity` of them, `*count` says how many. */
VITRUM_API vitrum_status vitrum_classify_file(vitrum_model* model, const char* path,
                                              vitrum_prediction* predictions, size_t capacity,
                                              size_t* count);
VITRUM_API vitrum_status vitrum_classify_bytes(vitrum_model* model, const void* data, size_t size,
                                               vitrum_prediction* predictions, size_t capacity,
                                               size_t* count);
VITRUM_API vitrum_status vitrum_classify_image(vitrum_model* model, const vitrum_image* image,
                                               vitrum_prediction* predictions, size_t capacity,
                                               size_t* count);

/* vitrum_dimension() numbers to `features`. */
VITRUM_API vitrum_status vitrum_features_file(vitrum_model* model, const char* path,
                                              float* features);
VITRUM_API vitrum_status vitrum_features_bytes(vitrum_model* model, const void* data, size_t size,
                                               float* features);
VITRUM_API vitrum_status vitrum_features_image(vitrum_model* model, const vitrum_image* image,
                                               float* features);

#ifdef __cplusplus
}
#endif
#endif
