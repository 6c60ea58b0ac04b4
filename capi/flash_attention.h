/*
 * flash_attention.h: flash_attention_cpu_forward and flash_attention_cpu_backward, which
 * flashkit.h declares.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "flashkit.h"
