/* Vitrum for C and everything that can call C: load a model, classify images, get features.
 *
 * Every function that can fail returns a vitrum_status; vitrum_last_error() then says in one line
 * what was wrong. A model may be used from several threads at once: decoding happens in the thread
 * that calls, the model itself takes one call after the other. Link with libvitrum_c, which exports
 * nothing but what is here.
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

typedef enum vitrum_precision { VITRUM_F32 = 0, VITRUM_BF16 = 1 } vitrum_precision;

typedef struct vitrum_model vitrum_model;

/* Start with VITRUM_OPTIONS_INIT and set what differs. New members will be added at the end. */
typedef struct vitrum_options {
  size_t size;              /* of this struct, as the caller was compiled */
  const char* arch;         /* what a bare weight file is for, or NULL */
  const char* device;       /* "auto", "cpu", ..., or NULL for auto */
  int32_t threads;          /* 0: every core this process may use */
  int32_t precision;        /* VITRUM_F32 or VITRUM_BF16 */
  int32_t exif_orientation; /* not 0: turn photos upright, which timm and others do not do */
} vitrum_options;
#define VITRUM_OPTIONS_INIT \
  { sizeof(vitrum_options), NULL, NULL, 0, VITRUM_F32, 0 }

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
