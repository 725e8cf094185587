// In the place of the card's: see tests/support/emulated_card.h.
#pragma once
#include "tests/support/emulated_lowering.h"
