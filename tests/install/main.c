/* A C program outside the project that uses the installed C interface; C++98, too. */
#include <stdio.h>
#include <string.h>
#include <vitrum/vitrum.h>

static int require(int holds, const char* what) {
  if (!holds) fprintf(stderr, "does not hold: %s (%s)\n", what, vitrum_last_error());
  return !holds;
}

int main(int argc, char** argv) {
  vitrum_options options = VITRUM_OPTIONS_INIT;
  vitrum_model* model = NULL;
  vitrum_input inputs[2];
  vitrum_status each[2];
  float features[2 * 4096];
  int wrong = 0;
  options.arch = "vit_tiny_patch16_224";
  wrong += require(vitrum_load("/nowhere", &options, &model) == VITRUM_INPUT, "status of an error");
  wrong += require(strcmp(vitrum_last_error(), "/nowhere: no such file") == 0, "text of the error");
  if (argc > 2) { /* MODEL PHOTO */
    memset(inputs, 0, sizeof inputs);
    inputs[0].source = VITRUM_FROM_FILE, inputs[0].data = argv[2];
    inputs[1].source = VITRUM_FROM_FILE, inputs[1].data = "nothing.jpg";
    wrong += require(vitrum_load(argv[1], NULL, &model) == VITRUM_OK, "loading a model");
    wrong += require(vitrum_dimension(model) <= 4096, "room for the features");
    wrong += require(
        vitrum_predict(model, inputs, sizeof inputs[0], 2, NULL, features, each) == VITRUM_INPUT,
        "status of two images");
    wrong += require(each[0] == VITRUM_OK && each[1] == VITRUM_INPUT, "status of each image");
    wrong += require(features[0] == features[0], "features of the first");
    vitrum_free(model);
  }
  if (!wrong) puts("the installed C interface works");
  return wrong;
}
