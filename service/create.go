package service

import (
	"context"

	"github.com/lanegate/lanegate"
)

// errClassExists is what CreateClass says of an id that is taken.
var errClassExists = &lanegate.Error{Kind: lanegate.KindConflict, Code: "class_exists"}

// CreateClass registers a class that must not exist yet; it starts in serial.
// Errors: a conflict with code class_exists, and those of PutClass.
func (s *Service) CreateClass(ctx context.Context, id string, spec lanegate.ClassSpec, o ChangeOptions) (c lanegate.Class, err error) {
	if !lanegate.ValidSlug(id) {
		return c, lanegate.Invalid([]lanegate.FieldError{{Pointer: "/id", Detail: "must match [a-z0-9][a-z0-9._-]{0,62}"}})
	}
	err = s.change(ctx, o, func(tx ConfigTx, cfg Config) error {
		if _, err := cfg.findClass(id); err == nil {
			return errClassExists.With("job class %q exists already; nothing was changed. PUT or PATCH /job-classes/%s changes it.", id, id)
		}
		c, err = s.newClass(tx, cfg, id, spec, lanegate.ManagedByAPI, o)
		return err
	})
	return c, err
}
