/* classify MODEL IMAGE...: the three most probable labels of each image, with the C interface. */
#include <stdio.h>

#include "vitrum/vitrum.h"

static int fail(vitrum_status status) {
  fprintf(stderr, "%s\n", vitrum_last_error());
  return status;
}

int main(int argc, char** argv) {
  if (argc < 3) return fprintf(stderr, "usage: classify MODEL IMAGE...\n"), 2;
  vitrum_options options = VITRUM_OPTIONS_INIT;
  vitrum_model* model = NULL;
  vitrum_status status = vitrum_load(argv[1], &options, &model);
  if (status != VITRUM_OK) return fail(status);

  for (int i = 2; i < argc && status == VITRUM_OK; ++i) {
    vitrum_prediction best[3];
    size_t count = 0;
    status = vitrum_classify_file(model, argv[i], best, 3, &count);
    if (status != VITRUM_OK) break;
    printf("%s\n", argv[i]);
    for (size_t k = 0; k < count; ++k)
      printf("  %6.2f %%  %s\n", 100.0 * best[k].probability, best[k].label);
  }
  vitrum_free(model);
  return status == VITRUM_OK ? 0 : fail(status);
}
